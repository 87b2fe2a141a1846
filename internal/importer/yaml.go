package importer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"callgate.dev/callgate/api/v1alpha1"
)

// WriteYAML writes Tools as YAML documents, with the keys of their schemas in the order in which they were written. Every
// YAML reader, 1.1 or 1.2, reads back the very strings and numbers of the JSON: "no" stays a string, 1e3 a number.
func WriteYAML(w io.Writer, tools []v1alpha1.Tool) error {
	for _, tool := range tools {
		text, err := json.Marshal(tool)
		if err != nil {
			return fmt.Errorf("%s: %w", tool.Spec.FunctionName, err)
		}
		node, err := fromJSON(text)
		if err != nil {
			return fmt.Errorf("%s: %w", tool.Spec.FunctionName, err)
		}
		// apiVersion first, as people write it; Go has kind first.
		kind := slices.Clone(node.Content[:2])
		copy(node.Content[copy(node.Content, node.Content[2:4]):], kind)
		_, spec := member(node, "spec")
		container, _ := member(spec, "container")
		container.HeadComment = "Fill in: the image, and the program in it that reads the arguments as JSON and prints the result."
		var document bytes.Buffer
		document.WriteString("---\n")
		encoder := yaml.NewEncoder(&document)
		encoder.SetIndent(2)
		encoder.CompactSeqIndent()
		if err := encoder.Encode(node); err != nil {
			return fmt.Errorf("%s: %w", tool.Spec.FunctionName, err)
		}
		if _, err := w.Write(document.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// member returns the nodes of a key, which is there because a Tool has it, and of its value.
func member(mapping *yaml.Node, key string) (name, value *yaml.Node) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i], mapping.Content[i+1]
		}
	}
	return &yaml.Node{}, &yaml.Node{}
}

// fromJSON makes a YAML node of JSON text. The YAML library's own reader of JSON refuses escaped surrogate pairs, and a
// detour over Go values would lose the order of keys and how numbers are written.
func fromJSON(text []byte) (*yaml.Node, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return nodeFrom(decoder)
}

func nodeFrom(decoder *json.Decoder) (*yaml.Node, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		node := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		if t == '{' {
			node = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		}
		for decoder.More() { // the keys of an object come as its items do
			item, err := nodeFrom(decoder)
			if err != nil {
				return nil, err
			}
			node.Content = append(node.Content, item)
		}
		if len(node.Content) == 0 {
			node.Style = yaml.FlowStyle
		}
		_, err := decoder.Token() // the closing one
		return node, err
	case string:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: stringStyle(t), Value: t}, nil
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: t.String()}, nil
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(t)}, nil
	default:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
	}
}

var (
	// plain strings cannot be taken for anything else; what looks like a number, or has ": " or " #" in it, is not among them.
	plain = regexp.MustCompile(`^[A-Za-z$][A-Za-z0-9_$/.,;()<>='" -]*$`)
	// The words that YAML 1.1 (which kubectl reads) or 1.2 takes for a boolean or null.
	reserved = regexp.MustCompile(`(?i)^(y|n|yes|no|on|off|true|false|null)$`)
	// lines are what a literal block keeps as it is: lines that begin and end with a visible character.
	lines = regexp.MustCompile(`^([\pL\pN\pP\pS]([\pL\pN\pP\pS ]*[\pL\pN\pP\pS])?\n+)+([\pL\pN\pP\pS]([\pL\pN\pP\pS ]*[\pL\pN\pP\pS])?)?$`)
)

func stringStyle(s string) yaml.Style {
	switch {
	case plain.MatchString(s) && !reserved.MatchString(s) && !strings.HasSuffix(s, " "):
		return 0
	case lines.MatchString(s):
		return yaml.LiteralStyle
	default:
		return yaml.DoubleQuotedStyle
	}
}
