package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// controllerKey is the key that the tests' controller has.
var controllerKey = bytes.Repeat([]byte{7}, KeyBytes)

func sealOf(callUID string, attempt int32, podUID string) Seal {
	s, err := NewSeal(controllerKey, callUID, attempt, podUID)
	if err != nil {
		panic(err)
	}
	return s
}

// printedBy is what a runner prints that seals with s, but names the call of the
// transcripts of these tests in its frames.
func printedBy(t testing.TB, s Seal, r Result) []byte {
	t.Helper()
	sealed, err := s.seal(plain(t, r))
	if err != nil {
		t.Fatal(err)
	}
	return parts(t, sealed)
}

// plain is the payload of a result, not sealed.
func plain(t testing.TB, r Result) []byte {
	t.Helper()
	var b bytes.Buffer
	s := sealOf(testCall, 1, testPod)
	if err := WriteResult(&b, s, r); err != nil {
		t.Fatal(err)
	}
	var sealed []byte
	for _, l := range lines(b.Bytes()) {
		var f frame
		if err := json.Unmarshal([]byte(l), &f); err != nil {
			t.Fatal(err)
		}
		sealed = append(sealed, f.Data...)
	}
	payload, err := s.open(sealed)
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// parts are perfect frames around any payload, as everybody can make them.
func parts(t testing.TB, payload []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	f := frame{Type: frameResult, CallUID: testCall, Attempt: 1, Parts: (len(payload) + maxChunkBytes - 1) / maxChunkBytes, SHA256: digest(payload)}
	for f.Part = 1; f.Part <= f.Parts; f.Part++ {
		f.Data = payload[:min(len(payload), maxChunkBytes)]
		payload = payload[len(f.Data):]
		if err := writeFrame(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func TestAResultIsNotReadableInTheLog(t *testing.T) {
	secret := "the-answer-that-nobody-else-reads"
	var b bytes.Buffer
	if err := WriteResult(&b, sealOf(testCall, 1, testPod), Result{Stdout: []byte(secret), StderrTail: []byte(secret), StartError: secret}); err != nil {
		t.Fatal(err)
	}
	var f frame
	if err := json.Unmarshal(b.Bytes(), &f); err != nil {
		t.Fatal(err)
	}
	for i := range 3 { // base64 of it at any offset
		encoded := base64.StdEncoding.EncodeToString([]byte(secret[i:]))
		if bytes.Contains(b.Bytes(), []byte(secret)) || bytes.Contains(f.Data, []byte(secret)) || bytes.Contains(b.Bytes(), []byte(encoded[:20])) {
			t.Fatalf("it is readable: %s", b.Bytes())
		}
	}
	if bytes.Contains(b.Bytes(), []byte(base64.StdEncoding.EncodeToString(sealOf(testCall, 1, testPod).Key))) {
		t.Fatal("the key is in the log")
	}
	if one, two := f.Data, (frame{}); true {
		b.Reset()
		_ = WriteResult(&b, sealOf(testCall, 1, testPod), Result{})
		if err := json.Unmarshal(b.Bytes(), &two); err != nil || bytes.Equal(one[:12], two.Data[:12]) {
			t.Fatalf("two seals with one nonce (%v)", err)
		}
	}
}

// TestOnlyTheRunnersOwnResultCounts: whoever can write into the log makes perfect
// frames, but has no key.
func TestOnlyTheRunnersOwnResultCounts(t *testing.T) {
	good := sealOf(testCall, 1, testPod)
	mine, forged := sampleResult(100), Result{Stdout: []byte(`"forged"`), StdoutBytes: 8}
	whole := printedBy(t, good, mine)
	sealed, err := good.seal(plain(t, mine))
	if err != nil {
		t.Fatal(err)
	}
	flip := func(at int) []byte {
		changed := bytes.Clone(sealed)
		changed[at] ^= 1
		return parts(t, changed)
	}
	guessed := good
	guessed.Key = bytes.Repeat([]byte{8}, KeyBytes)
	withKeyOf := func(callUID string, attempt int32, podUID string) Seal {
		return Seal{CallUID: callUID, Attempt: attempt, PodUID: podUID, Key: good.Key}
	}
	const foreign = "does not open with the key of this attempt"
	for _, tt := range []struct {
		reason  string
		in      []byte
		damaged string
	}{
		{"not sealed at all, as the version before printed it", parts(t, plain(t, forged)), foreign},
		{"sealed with a guessed key", printedBy(t, guessed, forged), foreign},
		{"a replay of the attempt before", printedBy(t, sealOf(testCall, 2, testPod), forged), foreign},
		{"a replay of another call", printedBy(t, sealOf("another-call", 1, testPod), forged), foreign},
		{"a replay from another pod", printedBy(t, sealOf(testCall, 1, "another-pod"), forged), foreign},
		{"the right key bound to another attempt", printedBy(t, withKeyOf(testCall, 2, testPod), forged), foreign},
		{"the right key bound to another call", printedBy(t, withKeyOf("another-call", 1, testPod), forged), foreign},
		{"the right key bound to another pod", printedBy(t, withKeyOf(testCall, 1, "another-pod"), forged), foreign},
		{"a bit of the nonce", flip(0), foreign},
		{"a bit of the text", flip(20), foreign},
		{"a bit of the tag", flip(len(sealed) - 1), foreign},
		{"cut at its end, digest and all", parts(t, sealed[:len(sealed)-1]), foreign},
		{"nothing but a nonce", parts(t, sealed[:12]), foreign},
		{"shorter than a nonce", parts(t, sealed[:3]), foreign},
		{"no parts", []byte(`{"version":2,"type":"result","callUID":"` + testCall + `","attempt":1,"part":1,"parts":0,"sha256":"` + digest(nil) + "\"}\n"), foreign},
		{"sealed rightly, but no result: only the runner could", mustParts(t, good, []byte("{}\n1234")), "4 bytes of output"},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			tr := take(tt.in)
			if tr.Result != nil || !strings.Contains(tr.Damaged, tt.damaged) {
				t.Fatalf("result %v, damaged %q", tr.Result, tr.Damaged)
			}
			if tr.Accepted != nil {
				t.Error("it counts as a proof that the call was accepted")
			}
			// Before or behind the true one it changes nothing.
			for _, in := range [][]byte{append(bytes.Clone(tt.in), whole...), append(bytes.Clone(whole), tt.in...)} {
				if tr := take(in); tr.Result == nil || !reflect.DeepEqual(*tr.Result, mine) || tr.Damaged != "" {
					t.Errorf("beside it the true result is %+v, damaged %q", tr.Result, tr.Damaged)
				}
			}
		})
	}
}

func mustParts(t *testing.T, s Seal, payload []byte) []byte {
	t.Helper()
	sealed, err := s.seal(payload)
	if err != nil {
		t.Fatal(err)
	}
	return parts(t, sealed)
}

// TestAResultThatOpensProvesMoreThanAnAcceptedFrame: everybody can make the one,
// only the runner the other.
func TestAResultThatOpensProvesMoreThanAnAcceptedFrame(t *testing.T) {
	var b bytes.Buffer
	if err := WriteAccepted(&b, "another-call", 3); err != nil {
		t.Fatal(err)
	}
	b.Write(printedBy(t, sealOf(testCall, 1, testPod), sampleResult(10)))
	tr := take(b.Bytes())
	if tr.Result == nil || *tr.Accepted != (Accepted{testCall, 1}) {
		t.Errorf("accepted %+v, damaged %q", tr.Accepted, tr.Damaged)
	}
}

func TestWithoutTheKeyNothingOpens(t *testing.T) {
	in := printedBy(t, sealOf(testCall, 1, testPod), sampleResult(10))
	for _, tt := range []struct {
		reason string
		key    Key
		want   string
	}{
		{"there is none", nil, "the key to open it is not there"},
		{"one of a wrong length", make(Key, 16), "the key has 16 bytes, it must have 32"},
		{"another one", make(Key, KeyBytes), "the controller's key (Secret callgate-result-key) was replaced"},
	} {
		tr := Transcript{Seal: Seal{CallUID: testCall, Attempt: 1, PodUID: testPod, Key: tt.key}}
		_, _ = tr.Write(in)
		if tr.Result != nil || !strings.Contains(tr.Damaged, tt.want) {
			t.Errorf("%s: result %v, damaged %q", tt.reason, tr.Result, tr.Damaged)
		}
	}
	if _, err := NewSeal(make([]byte, 31), testCall, 1, testPod); err == nil {
		t.Error("a short controller key was taken")
	}
	if err := WriteResult(&bytes.Buffer{}, Seal{CallUID: testCall, Attempt: 1, PodUID: testPod}, Result{}); err == nil {
		t.Error("a result was sealed without a key")
	}
}

func TestEveryAttemptHasAKeyOfItsOwn(t *testing.T) {
	seen := map[string]string{}
	for _, s := range []Seal{
		sealOf("a", 1, "p"), sealOf("a", 2, "p"), sealOf("a", 1, "q"), sealOf("b", 1, "p"),
		sealOf(`a" 1 "p`, 1, "p"), sealOf("a", 11, "p"), sealOf("a1", 1, "p"), sealOf("a", 1, `p" 1 "p`),
	} {
		name := fmt.Sprintf("%q %d %q", s.CallUID, s.Attempt, s.PodUID)
		if other := seen[string(s.Key)]; other != "" {
			t.Errorf("%s and %s have one key", name, other)
		}
		seen[string(s.Key)] = name
	}
	if again := sealOf("a", 1, "p"); seen[string(again.Key)] != `"a" 1 "p"` {
		t.Error("the next leader derives another key")
	}
}

func TestAKeyIsNotPrinted(t *testing.T) {
	s := sealOf(testCall, 1, testPod)
	c := Call{ResultKey: s.Key}
	for _, verb := range []string{"%v", "%+v", "%s", "%#v"} {
		for _, v := range []any{s.Key, s, c} {
			if out := fmt.Sprintf(verb, v); strings.Contains(out, fmt.Sprint([]byte(s.Key))) || strings.Contains(out, string(s.Key)) || !strings.Contains(out, "[key]") {
				t.Errorf("%s of %T prints %q", verb, v, out)
			}
		}
	}
}

// FuzzOpen: what was not sealed with the key never opens, and nothing panics.
func FuzzOpen(f *testing.F) {
	good := sealOf(testCall, 1, testPod)
	sealed, err := good.seal([]byte("{}\n"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed)
	f.Add([]byte{})
	f.Add(sealed[:12])
	f.Fuzz(func(t *testing.T, in []byte) {
		// All that was ever sealed with the key, in any of the fuzzer's processes.
		if payload, err := good.open(in); err == nil && string(payload) != "{}\n" {
			t.Fatalf("%x opened as %q", in, payload)
		}
	})
}
