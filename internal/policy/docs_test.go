package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/build"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"callgate.dev/callgate/api/v1alpha1"
)

// page reads the policies of docs/policies.md by the heading they stand under.
func page(t *testing.T) map[string][]*Policy {
	t.Helper()
	content, err := os.ReadFile("../../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	policies := map[string][]*Policy{}
	for _, section := range strings.Split(string(content), "\n## ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		policies[heading] = nil
		for _, block := range strings.Split(text, "\n```yaml\n")[1:] {
			block, _, _ = strings.Cut(block, "\n```")
			if p := readPolicy(t, block); p != nil {
				policies[heading] = append(policies[heading], p)
			}
		}
	}
	return policies
}

// readPolicy compiles a policy of either kind; nil is another object.
func readPolicy(t *testing.T, document string) *Policy {
	t.Helper()
	text, err := yaml.ToJSON([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	var meta struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
	}
	if err := json.Unmarshal(text, &meta); err != nil {
		t.Fatal(err)
	}
	strict := json.NewDecoder(bytes.NewReader(text))
	strict.DisallowUnknownFields()
	var spec *v1alpha1.ToolPolicySpec
	switch meta.Kind {
	case "ToolPolicy":
		p := &v1alpha1.ToolPolicy{}
		err, spec = strict.Decode(p), &p.Spec
		if meta.Namespace == "" {
			t.Errorf("ToolPolicy %s has no namespace", meta.Name)
		}
	case "ClusterToolPolicy":
		p := &v1alpha1.ClusterToolPolicy{}
		err, spec = strict.Decode(p), &p.Spec
	default:
		return nil
	}
	if err != nil {
		t.Fatalf("%s %s: %v", meta.Kind, meta.Name, err)
	}
	p := Compile(meta.Namespace, meta.Name, spec)
	if err := p.Err(); err != nil {
		t.Fatalf("%s %s: %v", meta.Kind, meta.Name, err)
	}
	return p
}

// Every policy of the page does what the page says.
func TestPoliciesOfTheDocs(t *testing.T) {
	user := func(name string, groups ...string) v1alpha1.Requester {
		return v1alpha1.Requester{Username: name, Groups: append(groups, "system:authenticated")}
	}
	account := func(namespace, name string) v1alpha1.Requester {
		return user("system:serviceaccount:"+namespace+":"+name, "system:serviceaccounts", "system:serviceaccounts:"+namespace)
	}
	effects := func(e v1alpha1.SideEffects) func(*v1alpha1.Tool) {
		return func(t *v1alpha1.Tool) { t.Spec.SideEffects = e }
	}
	label := func(key, value string) func(*v1alpha1.Tool) {
		return func(t *v1alpha1.Tool) { t.Labels = map[string]string{key: value} }
	}
	everything := Compile("", "zz-everything", &v1alpha1.ToolPolicySpec{
		Subjects: []v1alpha1.Subject{{Kind: "Group", Name: "system:authenticated"}}, Rules: []v1alpha1.PolicyRule{allowAll}})
	urlCall := func(args string) docCall { return docCall{args: args, beside: everything} }
	dev, release, oncall := user("dev", "developers"), user("rel", "release-managers"), user("dana", "on-call")
	at := func(text string) time.Time {
		when, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	change, read := tool("deploy", effects(v1alpha1.SideEffectsNonIdempotent)), tool("read", effects(v1alpha1.SideEffectsNone))
	again := tool("set-status", effects(v1alpha1.SideEffectsIdempotent))
	frozen := func(tool *v1alpha1.Tool, who v1alpha1.Requester, now string) docCall {
		return docCall{tool: tool, who: who, now: at(now), beside: everything}
	}
	incident := func(text string) map[string]v1alpha1.ContextValue {
		return map[string]v1alpha1.ContextValue{"incident": v1alpha1.ContextValue(text)}
	}
	alice := user("alice@example.com", "customers")

	refund := func(args string) docCall {
		return docCall{tool: tool("refund"), who: account("agents", "support-agent"), args: args}
	}
	const finance, pair = "over-100: 1 of Group finance in 1h0m0s", "dangerous: 2 of Group on-call in 15m0s"
	eachAgent := []string{"each-agent: 5 at once per caller, waiting 30s", "each-agent: 60 in 1m0s per caller"}
	const paid, night = "paid-tools: 500 in 24h0m0s", "changes-at-night: 10 in 1h0m0s"
	noon, midnight := at("2026-12-01T12:00:00Z"), at("2026-12-01T23:30:00Z")

	tests := map[string]struct {
		allowed, refused map[string]docCall
		// obliged are allowed, too, and these are their obligations; those of allowed
		// have none.
		obliged map[string]docCall
	}{
		"Read-only for everyone": {
			allowed: map[string]docCall{"a user": {tool: read}, "an agent": {tool: read, who: account("agents", "a")}},
			refused: map[string]docCall{"a change": {tool: change}, "what can be repeated is a change, too": {tool: again},
				"a Tool that does not say": {tool: tool("x")}},
		},
		"Per team": {
			allowed: map[string]docCall{
				"an agent of the team":          {tool: tool("x", label("team", "support")), who: account("support-agents", "a")},
				"another team, its own Tool":    {tool: tool("x", label("team", "finance")), who: account("finance-agents", "b")},
				"another agent of the same one": {tool: tool("x", label("team", "support")), who: account("support-agents", "b")},
			},
			refused: map[string]docCall{
				"another team":                      {tool: tool("x", label("team", "support")), who: account("finance-agents", "a")},
				"a Tool of another team":            {tool: tool("x", label("team", "finance")), who: account("support-agents", "a")},
				"a Tool of no team":                 {tool: tool("x"), who: account("support-agents", "a")},
				"a Tool whose team is empty":        {tool: tool("x", label("team", "")), who: account("support-agents", "a")},
				"a namespace that begins like it":   {tool: tool("x", label("team", "support")), who: account("support-agents-2", "a")},
				"an account named like a namespace": {tool: tool("x", label("team", "support")), who: account("other", "support-agents")},
				"a user":                            {tool: tool("x", label("team", "support")), who: user("support-agents/a")},
			},
		},
		"Per environment": {
			allowed: map[string]docCall{
				"a developer in dev":                 {tool: tool("x", label("env", "dev")), who: dev},
				"a developer in staging":             {tool: tool("x", label("env", "staging")), who: dev},
				"a release manager in production":    {tool: tool("x", label("env", "prod")), who: release},
				"a release manager with his own way": {tool: tool("x"), who: release, beside: everything},
			},
			refused: map[string]docCall{
				"a developer in production":                  {tool: tool("x", label("env", "prod")), who: dev},
				"even if another policy allows it":           {tool: tool("x", label("env", "prod")), who: dev, beside: everything},
				"a Tool without a label counts as one":       {tool: tool("x"), who: dev, beside: everything},
				"a typing error in the label counts as one":  {tool: tool("x", label("env", "develop")), who: dev, beside: everything},
				"somebody else in dev":                       {tool: tool("x", label("env", "dev")), who: user("eve")},
				"a release manager, where nothing allows it": {tool: tool("x"), who: release},
			},
		},
		"Change freeze": {
			allowed: map[string]docCall{
				"before it":                          frozen(change, dev, "2026-12-17T23:59:59Z"),
				"reading goes on":                    frozen(read, dev, "2026-12-24T12:00:00Z"),
				"the on-call":                        frozen(change, oncall, "2026-12-24T12:00:00Z"),
				"from its last moment on":            frozen(change, dev, "2027-01-04T06:00:00Z"),
				"Friday before 16:00 in Berlin":      frozen(change, dev, "2026-11-27T14:59:59Z"),
				"Monday in Berlin":                   frozen(change, dev, "2026-11-29T23:00:00Z"),
				"on a weekend, what can be repeated": frozen(again, dev, "2026-11-28T12:00:00Z"),
			},
			refused: map[string]docCall{
				"from its first moment on":       frozen(change, dev, "2026-12-20T00:00:00Z"),
				"what can be repeated, too":      frozen(again, dev, "2026-12-24T12:00:00Z"),
				"until its end":                  frozen(change, dev, "2027-01-04T05:59:59Z"),
				"Friday from 16:00 in Berlin":    frozen(change, dev, "2026-11-27T15:00:00Z"),
				"Saturday in Berlin":             frozen(change, dev, "2026-11-27T23:30:00Z"),
				"Sunday night in Berlin":         frozen(change, dev, "2026-11-29T22:59:59Z"),
				"Friday evening, in summer time": frozen(change, dev, "2026-07-03T14:00:00Z"),
			},
		},
		"Break-glass": {
			allowed: map[string]docCall{
				"with an incident":               {tool: change, who: oncall, context: incident("INC-20261")},
				"any Tool":                       {tool: tool("x"), who: oncall, context: incident("INC-0001")},
				"one person, before the evening": {tool: tool("restart-service"), who: user("dana@example.com"), now: at("2026-11-30T19:59:59Z")},
			},
			refused: map[string]docCall{
				"without an incident":         {tool: change, who: oncall},
				"an empty one":                {tool: change, who: oncall, context: incident("")},
				"one that only contains one":  {tool: change, who: oncall, context: incident("no INC-2026 at all")},
				"with a line end behind it":   {tool: change, who: oncall, context: incident("INC-2026\n")},
				"somebody else":               {tool: change, who: dev, context: incident("INC-2026")},
				"one person, in the evening":  {tool: tool("restart-service"), who: user("dana@example.com"), now: at("2026-11-30T20:00:00Z")},
				"one person, another Tool":    {tool: tool("deploy"), who: user("dana@example.com"), now: at("2026-11-30T12:00:00Z")},
				"another person of that name": {tool: tool("restart-service"), who: user("Dana@example.com"), now: at("2026-11-30T12:00:00Z")},
			},
		},
		"A refund over 100 needs finance": {
			allowed: map[string]docCall{
				"a small one": refund(`{"amount":99.5,"currency":"EUR"}`),
				"100":         refund(`{"amount":100,"currency":"EUR"}`),
			},
			obliged: map[string]docCall{
				"over 100":                refund(`{"amount":100.01,"currency":"EUR"}`).needs(finance),
				"the last that can be":    refund(`{"amount":5000,"currency":"EUR"}`).needs(finance),
				"another currency":        refund(`{"amount":1,"currency":"KWD"}`).needs(finance),
				"no currency":             refund(`{"amount":1}`).needs(finance),
				"currency in lower case":  refund(`{"amount":1,"currency":"eur"}`).needs(finance),
				"a currency that is none": refund(`{"amount":1,"currency":7}`).needs(finance),
			},
			refused: map[string]docCall{
				"over 5,000":                    refund(`{"amount":5000.01,"currency":"EUR"}`),
				"an amount that cannot be read": refund(`{"amount":"1","currency":"EUR"}`),
				"no amount":                     refund(`{"currency":"EUR"}`),
				"another agent":                 {tool: tool("refund"), who: account("agents", "intern"), args: `{"amount":1,"currency":"EUR"}`},
				"another tool":                  {tool: tool("refund-all"), who: account("agents", "support-agent"), args: `{"amount":1,"currency":"EUR"}`},
			},
		},
		"Two persons for a dangerous tool": {
			allowed: map[string]docCall{
				"a Tool without the label": {tool: tool("x"), beside: everything},
				"one of little danger":     {tool: tool("x", label("danger", "low")), beside: everything},
			},
			obliged: map[string]docCall{
				"whoever calls":           docCall{tool: tool("x", label("danger", "high")), who: account("agents", "a"), beside: everything}.needs(pair),
				"the on-call themselves":  docCall{tool: tool("x", label("danger", "high")), who: oncall, beside: everything}.needs(pair),
				"whatever the Tool's own": docCall{tool: tool("x", label("danger", "high"), effects(v1alpha1.SideEffectsNone)), beside: everything}.needs(pair),
			},
			refused: map[string]docCall{
				"nothing allows it":             {tool: tool("x", label("danger", "high"))},
				"nor what needs no two persons": {tool: tool("x")},
			},
		},
		"Budgets": {
			allowed: map[string]docCall{
				"a person has none":           {tool: tool("x"), who: dev, now: noon, beside: everything},
				"nor for the tools that cost": {tool: tool("x", label("cost", "paid")), who: dev, now: midnight, beside: everything},
			},
			obliged: map[string]docCall{
				"an agent":           docCall{tool: read, who: account("agents", "a"), now: noon, beside: everything}.needs(eachAgent...),
				"a tool that costs":  docCall{tool: tool("x", label("cost", "paid"), effects(v1alpha1.SideEffectsNone)), who: account("agents", "a"), now: midnight, beside: everything}.needs(append(eachAgent, paid)...),
				"a change by day":    docCall{tool: change, who: account("agents", "a"), now: noon, beside: everything}.needs(eachAgent...),
				"a change at night":  docCall{tool: change, who: account("agents", "a"), now: midnight, beside: everything}.needs(append([]string{night}, eachAgent...)...),
				"a read at night":    docCall{tool: read, who: account("agents", "a"), now: midnight, beside: everything}.needs(eachAgent...),
				"a change at 06:00":  docCall{tool: change, who: account("agents", "a"), now: at("2026-12-02T05:00:00Z"), beside: everything}.needs(eachAgent...),
				"and just before it": docCall{tool: change, who: account("agents", "a"), now: at("2026-12-02T04:59:59Z"), beside: everything}.needs(append([]string{night}, eachAgent...)...),
			},
			refused: map[string]docCall{
				"a budget allows nothing":       {tool: read, who: account("agents", "a"), now: noon},
				"nor does one that is not used": {tool: change, who: account("agents", "a"), now: midnight},
			},
		},
		"Allow-list of URLs": {
			allowed: map[string]docCall{
				"the host alone":         urlCall(`{"url":"https://docs.example.com"}`),
				"a path and a query":     urlCall(`{"url":"https://status.example.com/a/b?q=%20x&r=@#top"}`),
				"the default port":       urlCall(`{"url":"https://docs.example.com:443/"}`),
				"a Tool without url":     urlCall(`{"uri":"https://evil.example/"}`),
				"no arguments":           urlCall(`{}`),
				"another host in a path": urlCall(`{"url":"https://docs.example.com/https://evil.example/"}`),
			},
			refused: map[string]docCall{
				"another host":                urlCall(`{"url":"https://evil.example/"}`),
				"a longer host":               urlCall(`{"url":"https://docs.example.com.evil.example/"}`),
				"a longer host without a dot": urlCall(`{"url":"https://docs.example.community/"}`),
				"a host that ends with it":    urlCall(`{"url":"https://evil-docs.example.com/"}`),
				"a host below it":             urlCall(`{"url":"https://a.docs.example.com/"}`),
				"a dot is a dot":              urlCall(`{"url":"https://docs-example.com/"}`),
				"every dot is a dot":          urlCall(`{"url":"https://docs.example-com/"}`),
				"a blank in the path":         urlCall(`{"url":"https://docs.example.com/a @evil.example/"}`),
				"the dot of the root":         urlCall(`{"url":"https://docs.example.com./"}`),
				"user information":            urlCall(`{"url":"https://docs.example.com@evil.example/"}`),
				"user and password":           urlCall(`{"url":"https://docs.example.com:443@evil.example/"}`),
				"user information before it":  urlCall(`{"url":"https://evil@docs.example.com/"}`),
				"upper case":                  urlCall(`{"url":"HTTPS://DOCS.EXAMPLE.COM/"}`),
				"upper case of another host":  urlCall(`{"url":"https://DOCS.EXAMPLE.COM.EVIL.EXAMPLE/"}`),
				"a letter that folds to an s": urlCall(`{"url":"https://docſ.example.com/"}`),
				"without TLS":                 urlCall(`{"url":"http://docs.example.com/"}`),
				"another scheme":              urlCall(`{"url":"file:///etc/passwd"}`),
				"no scheme":                   urlCall(`{"url":"//docs.example.com/"}`),
				"one slash":                   urlCall(`{"url":"https:/docs.example.com/"}`),
				"a backslash":                 urlCall(`{"url":"https://docs.example.com\\@evil.example/"}`),
				"a query without a path":      urlCall(`{"url":"https://docs.example.com?@evil.example/"}`),
				"a fragment without a path":   urlCall(`{"url":"https://docs.example.com#@evil.example/"}`),
				"an escape in the host":       urlCall(`{"url":"https://docs.example.com%2eevil.example/"}`),
				"another port":                urlCall(`{"url":"https://docs.example.com:8443/"}`),
				"a port that begins like it":  urlCall(`{"url":"https://docs.example.com:4430/"}`),
				"a blank before it":           urlCall(`{"url":" https://docs.example.com/"}`),
				"a line end behind it":        urlCall(`{"url":"https://docs.example.com\n"}`),
				"a second line":               urlCall(`{"url":"https://docs.example.com/\nhttps://evil.example/"}`),
				"it in the second line":       urlCall(`{"url":"https://evil.example/\nhttps://docs.example.com/"}`),
				"a tab that a browser drops":  urlCall(`{"url":"https://docs.example.com\t.evil.example/"}`),
				"a NUL":                       urlCall(`{"url":"https://docs.example.com\u0000.evil.example/"}`),
				"it in the path of another":   urlCall(`{"url":"https://evil.example/https://docs.example.com/"}`),
				"empty":                       urlCall(`{"url":""}`),
				"null":                        urlCall(`{"url":null}`),
				"a list":                      urlCall(`{"url":["https://docs.example.com/"]}`),
				"nothing allows the Tool":     {args: `{"url":"https://docs.example.com/"}`},
			},
		},
		"On behalf of an end user": {
			allowed: map[string]docCall{
				"her own orders":           {tool: tool("list-orders"), who: alice, args: `{"customer":"alice@example.com"}`},
				"her own order, cancelled": {tool: tool("cancel-order"), who: alice, args: `{"customer":"alice@example.com","order":1}`},
			},
			refused: map[string]docCall{
				"somebody else's":              {tool: tool("list-orders"), who: alice, args: `{"customer":"bob@example.com"}`},
				"another spelling":             {tool: tool("list-orders"), who: alice, args: `{"customer":"Alice@example.com"}`},
				"nobody's":                     {tool: tool("list-orders"), who: alice, args: `{}`},
				"another Tool":                 {tool: tool("delete-customer"), who: alice, args: `{"customer":"alice@example.com"}`},
				"the runtime itself":           {tool: tool("list-orders"), who: account("agents", "runtime"), args: `{"customer":"alice@example.com"}`},
				"a user who is not a customer": {tool: tool("list-orders"), who: user("alice@example.com"), args: `{"customer":"alice@example.com"}`},
			},
		},
	}
	policies := page(t)
	for heading := range policies {
		if _, ok := tests[heading]; !ok {
			t.Errorf("docs/policies.md: no test runs what stands under %q", heading)
		}
	}
	for heading, test := range tests {
		if len(policies[heading]) == 0 || len(test.allowed) < 2 || len(test.refused) < 2 {
			t.Errorf("%s: %d policies, %d calls to allow and %d to refuse", heading, len(policies[heading]), len(test.allowed), len(test.refused))
		}
		for reason, call := range test.allowed {
			d := call.decide(t, policies[heading])
			if !d.Allowed {
				t.Errorf("%s: %s: refused: %s", heading, reason, d.Message)
			}
			if o := obligations(d); len(o) > 0 {
				t.Errorf("%s: %s: has obligations %q", heading, reason, o)
			}
		}
		for reason, call := range test.obliged {
			d := call.decide(t, policies[heading])
			if o := obligations(d); !d.Allowed || !slices.Equal(o, call.obligations) {
				t.Errorf("%s: %s: allowed: %v %s; obligations %q, want %q", heading, reason, d.Allowed, d.Message, o, call.obligations)
			}
		}
		for reason, call := range test.refused {
			if d := call.decide(t, policies[heading]); d.Allowed {
				t.Errorf("%s: %s: allowed by %+v", heading, reason, d.Decisive)
			}
		}
	}
	// One page: together they refuse no less.
	all := slices.Concat(policies["Change freeze"], policies["Break-glass"])
	if d := (docCall{tool: change, who: oncall, now: at("2026-12-24T12:00:00Z"), context: incident("INC-2026")}).decide(t, all); !d.Allowed {
		t.Errorf("break-glass in the freeze: %s", d.Message)
	}
	if d := (docCall{tool: change, who: oncall, now: at("2026-12-24T12:00:00Z")}).decide(t, all); d.Allowed {
		t.Error("in the freeze, without an incident: allowed")
	}
}

// docCall is a call; what is not set does not matter.
type docCall struct {
	tool    *v1alpha1.Tool
	who     v1alpha1.Requester
	args    string
	context map[string]v1alpha1.ContextValue
	now     time.Time
	beside  *Policy // stands there, too
	// obligations of an allowed call, approvals first, as obligations words them.
	obligations []string
}

func (c docCall) needs(obligations ...string) docCall {
	c.obligations = obligations
	return c
}

// obligations puts into words what a decision asks for.
func obligations(d Decision) (out []string) {
	for _, a := range d.Approvals {
		var who []string
		for _, s := range a.Approvers {
			who = append(who, string(s.Kind)+" "+s.Name)
		}
		out = append(out, fmt.Sprintf("%s: %d of %s in %s", a.Rule.Rule, a.Required, strings.Join(who, ", "), a.ExpireAfter))
	}
	for _, l := range d.Limits {
		per := ""
		if l.PerCaller {
			per = " per caller"
		}
		if l.MaxConcurrent > 0 {
			out = append(out, fmt.Sprintf("%s: %d at once%s, waiting %s", l.Rule.Rule, l.MaxConcurrent, per, l.MaxWait))
		}
		if l.MaxCalls > 0 {
			out = append(out, fmt.Sprintf("%s: %d in %s%s", l.Rule.Rule, l.MaxCalls, l.Window, per))
		}
	}
	return out
}

// decide passes both halves, as a call does.
func (c docCall) decide(t *testing.T, policies []*Policy) Decision {
	t.Helper()
	if c.args == "" {
		c.args = "{}"
	}
	in := input(t, c.args)
	in.Requester, in.Context = v1alpha1.Requester{Username: "somebody", Groups: []string{"system:authenticated"}}, c.context
	if c.who.Username != "" {
		in.Requester = c.who
	}
	if c.tool != nil {
		in.Tool = c.tool
	}
	if !c.now.IsZero() {
		in.Now = c.now
	}
	policies = slices.Clone(policies)
	if c.beside != nil {
		policies = append(policies, c.beside)
	}
	first := in
	first.Args = nil
	if d := Decide(first, policies); !d.Allowed {
		return d
	}
	return Decide(in, policies)
}

// The controller's image has no files of time zones: they must be compiled in,
// or conditions that use them fail there and nowhere else.
func TestTimeZonesAreCompiledIn(t *testing.T) {
	pkg, err := build.ImportDir(".", 0)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(pkg.Imports, "time/tzdata") {
		t.Error("package policy does not import time/tzdata")
	}
}
