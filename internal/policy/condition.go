package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	_ "time/tzdata" // the controller's image has no time zones of its own, and now.getHours("Europe/Berlin") needs one

	"cel.dev/cel-go/cel"
	celast "cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// costLimit bounds one evaluation of a condition, in CEL's cost units: a few
// milliseconds. A condition over it fails, which counts against the call.
const costLimit = 100_000

// maxConditionDepth bounds how deep a condition may be nested.
const maxConditionDepth = 64

// fields are what a condition can read besides args and now. A name that is not
// here is a typing error, and would otherwise be found only when a call comes.
var fields = map[string][]string{
	"caller": {"username", "groups", "serviceAccount"},
	"tool":   {"name", "namespace", "labels", "sideEffects"},
	"call":   {"namespace", "context"},
}

var environment = sync.OnceValues(func() (*cel.Env, error) {
	object := cel.MapType(cel.StringType, cel.DynType)
	return cel.NewEnv(
		cel.Variable("args", object),
		cel.Variable("caller", object),
		cel.Variable("tool", object),
		cel.Variable("call", object),
		cel.Variable("now", cel.TimestampType),
		// JSON does not tell 100 from 100.0, so a condition must not, either.
		cel.CrossTypeNumericComparisons(true),
		cel.ParserRecursionLimit(maxConditionDepth),
		// A typing error in one of these would be found only when a call comes.
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateTimestampLiterals(), cel.ValidateDurationLiterals()),
	)
})

// condition is a compiled `when`.
type condition struct {
	program cel.Program
	// readsArgs: it can be decided only once the arguments are valid.
	readsArgs bool
	// arguments that it reads by name, and those of them that it asks has() for.
	arguments, guarded []string
}

// compileCondition compiles a `when`. The error names line and column.
func compileCondition(when string) (*condition, error) {
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("CEL is not available: %w", err)
	}
	ast, issues := env.Compile(when)
	if err := firstIssue(issues); err != nil {
		return nil, err
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("1:1: the condition is of type %s, it must be true or false", t)
	}
	program, err := env.Program(ast, cel.CostLimit(costLimit))
	if err != nil {
		return nil, err
	}
	c := &condition{program: program}
	return c, c.inspect(ast.NativeRep())
}

func firstIssue(issues *cel.Issues) error {
	if issues == nil || issues.Err() == nil {
		return nil
	}
	for _, e := range issues.Errors() {
		return fmt.Errorf("%d:%d: %s", e.Location.Line(), e.Location.Column()+1, e.Message)
	}
	return issues.Err()
}

// inspect finds out what the condition reads.
func (c *condition) inspect(ast *celast.AST) (err error) {
	celast.PostOrderVisit(ast.Expr(), celast.NewExprVisitor(func(e celast.Expr) {
		switch e.Kind() {
		case celast.IdentKind:
			c.readsArgs = c.readsArgs || e.AsIdent() == "args"
		case celast.SelectKind:
			s := e.AsSelect()
			if s.Operand().Kind() != celast.IdentKind {
				return
			}
			name := s.Operand().AsIdent()
			if known, ok := fields[name]; ok && !slices.Contains(known, s.FieldName()) && err == nil {
				at := ast.SourceInfo().GetStartLocation(e.ID())
				err = fmt.Errorf("%d:%d: %s has no field %q; it has %s", at.Line(), at.Column()+1, name, s.FieldName(), strings.Join(known, ", "))
			}
			if name == "args" && s.IsTestOnly() {
				c.guarded = append(c.guarded, s.FieldName())
			} else if name == "args" {
				c.arguments = append(c.arguments, s.FieldName())
			}
		case celast.CallKind:
			c.inspectCall(e.AsCall())
		}
	}))
	return err
}

// inspectCall sees args["x"] and "x" in args, which are reads and guards, too.
func (c *condition) inspectCall(call celast.CallExpr) {
	args := call.Args()
	isArgs := func(e celast.Expr) bool { return e.Kind() == celast.IdentKind && e.AsIdent() == "args" }
	text := func(e celast.Expr) (string, bool) {
		if e.Kind() != celast.LiteralKind {
			return "", false
		}
		s, ok := e.AsLiteral().(types.String)
		return string(s), ok
	}
	switch {
	case call.FunctionName() == operators.Index && len(args) == 2 && isArgs(args[0]):
		if name, ok := text(args[1]); ok {
			c.arguments = append(c.arguments, name)
		}
	case call.FunctionName() == operators.In && len(args) == 2 && isArgs(args[1]):
		if name, ok := text(args[0]); ok {
			c.guarded = append(c.guarded, name)
		}
	}
}

var errNotBool = errors.New("the condition is neither true nor false")

// eval decides the condition on one call. It never panics.
func (c *condition) eval(variables map[string]any) (matches bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the condition failed: %v", r)
		}
	}()
	value, _, err := c.program.Eval(variables)
	if err != nil {
		return false, err
	}
	b, ok := value.Value().(bool)
	if !ok {
		return false, errNotBool
	}
	return b, nil
}
