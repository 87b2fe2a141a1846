package importer

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/jsonvalue"
)

// written is the schema as a YAML 1.1 reader (which kubectl has) and a YAML 1.2 reader read it back, as JSON.
func written(t *testing.T, schema string) (document string, read11, read12 []byte) {
	t.Helper()
	var out bytes.Buffer
	in := v1alpha1.Tool{Spec: v1alpha1.ToolSpec{InputSchema: apiextensionsv1.JSON{Raw: []byte(schema)}}}
	in.Name, in.Kind, in.APIVersion = "a", "Tool", "callgate.dev/v1alpha1"
	if err := WriteYAML(&out, []v1alpha1.Tool{in}); err != nil {
		t.Fatal(err)
	}
	var back struct {
		Spec struct {
			InputSchema json.RawMessage `json:"inputSchema"`
		} `json:"spec"`
	}
	text, err := utilyaml.ToJSON(out.Bytes())
	if err != nil {
		t.Fatalf("%v in:\n%s", err, out.String())
	}
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	var twelve map[string]any
	if err := yaml.Unmarshal(out.Bytes(), &twelve); err != nil {
		t.Fatalf("%v in:\n%s", err, out.String())
	}
	read12, err = json.Marshal(twelve["spec"].(map[string]any)["inputSchema"])
	if err != nil {
		t.Fatalf("%v in:\n%s", err, out.String())
	}
	return out.String(), back.Spec.InputSchema, read12
}

func sameValue(t *testing.T, a, b []byte) bool {
	t.Helper()
	first, err1 := jsonvalue.CanonicalDigest(a)
	second, err2 := jsonvalue.CanonicalDigest(b)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return first == second
}

// What YAML readers like to take for something else, as a key and as a value.
var traps = []string{
	"no", "No", "on", "off", "y", "n", "Y", "N", "yes", "true", "TRUE", "false", "null", "NULL", "~", "", " ", "a ", " a", "1e3", "1E3", "0x1F", "0o7",
	"0b1", "017", "1_000", "190:20:30", "12:30", "2001-01-01", "2001-01-01T00:00:00Z", ".inf", "-.INF", ".nan", "NaN", "1.0", "+1", "-1", "-0", ".5", "=",
	"<<", "<", "*a", "&a", "!x", "!!int 1", "%x", "@x", "`x", "|", ">", "|-", "- a", "-", "--- a", "---", "...", "? a", "?", "[a]", "{a}", "a: b", "a:", "a #b", "#a",
	"'a'", `"a"`, `a"b`, "it's", `\`, `\n`, "a\nb", "a\nb\n", "a\n\n\nb\n\n", "\na", "\n", "\n\n", "a \nb", "a\n b", "a\n---\nb", "a\n# b", "a\r\nb", "a\rb", "\t", "a\tb", "\ta\nb",
	"\x00", "\x07", "\x1b[0m", "\x7f", "\u0080", "\u0085", "a\u0085b", "\u00a0", "\u2028", "\u2029", "a\nb\u2028c", "\ufeff", "\ufeffa", "\ufffd", "\uffff", "\ue000", "é\nü", "😀", "a\n😀", "\U0010ffff",
	"$ref", "$(args.x)", strings.Repeat("long ", 100) + "x", strings.Repeat("x", 2000), strings.Repeat("line\n", 50),
}

func TestStringsSurvive(t *testing.T) {
	for _, trap := range traps {
		value, err := json.Marshal(map[string]any{"enum": []string{trap}, "properties": map[string]any{trap: map[string]any{"description": trap}}})
		if err != nil {
			t.Fatal(err)
		}
		document, read11, read12 := written(t, string(value))
		if !sameValue(t, value, read11) {
			t.Errorf("%q: YAML 1.1 reads %s in:\n%s", trap, read11, document)
		}
		if !sameValue(t, value, read12) {
			t.Errorf("%q: YAML 1.2 reads %s in:\n%s", trap, read12, document)
		}
	}
}

func TestNumbersSurvive(t *testing.T) {
	for _, number := range []string{
		"0", "-0", "1", "-1", "1.0", "1e3", "1E3", "1e+3", "1e-3", "0.1", "0.10", "1.5e300", "5e-324", "9007199254740993",
		"9223372036854775807", "-9223372036854775808", "9223372036854775808", "18446744073709551615", "18446744073709551616",
		"123456789012345678901234567890", "3.14159265358979323846", "1e19",
	} {
		value := []byte(`{"maximum":` + number + `}`)
		document, read11, read12 := written(t, string(value))
		if !strings.Contains(document, "    maximum: "+number+"\n") {
			t.Errorf("%s is not written as it is:\n%s", number, document)
		}
		for _, read := range [][]byte{read11, read12} {
			if !sameValue(t, value, read) {
				t.Errorf("%s is read back as %s in:\n%s", number, read, document)
			}
		}
	}
}

func TestOrderAndEmptyValues(t *testing.T) {
	const schema = `{"z":{},"a":[],"m":null,"b":true,"enum":[false,[1,{"y":1,"x":[[]]}],"\ud83d\ude00"]}`
	document, read, _ := written(t, schema)
	if !sameValue(t, []byte(schema), read) {
		t.Errorf("read back as %s in:\n%s", read, document)
	}
	at := -1
	for _, key := range []string{"apiVersion: ", "kind: ", "metadata:", "inputSchema:", "z: {}", "a: []", "m: null", "b: true", "enum:"} {
		next := strings.Index(document, key)
		if next <= at {
			t.Errorf("%q is not where it was written:\n%s", key, document)
		}
		at = next
	}
}

// Whatever JSON a schema holds, kubectl reads it back from the YAML.
func FuzzYAML(f *testing.F) {
	for _, trap := range traps {
		text, err := json.Marshal(trap)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(`{"a":` + string(text) + `}`)
	}
	f.Add(`{"x":[1e400,-0.0,{"a b":[null,true,{}]},18446744073709551616]}`)
	f.Fuzz(func(t *testing.T, text string) {
		if _, _, err := checkSchema("inputSchema", []byte(text)); err != nil {
			return
		}
		document, read, _ := written(t, text)
		if !sameValue(t, []byte(text), read) {
			t.Errorf("%s is read back as %s in:\n%s", text, read, document)
		}
	})
}
