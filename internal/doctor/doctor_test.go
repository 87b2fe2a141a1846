package doctor

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// The expected policies are those that config/admission installs.
func TestExpectedPolicies(t *testing.T) {
	files, err := filepath.Glob("../../config/admission/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no files in config/admission", err)
	}
	object := regexp.MustCompile(`(?m)^kind: (.*AdmissionPolicy(?:Binding)?)\nmetadata:\n  name: (.*)$`)
	var installed, expected []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range object.FindAllStringSubmatch(string(text), -1) {
			installed = append(installed, m[1]+" "+m[2])
		}
	}
	for _, o := range expectedPolicies {
		expected = append(expected, o.Kind+" "+o.Name)
	}
	slices.Sort(installed)
	slices.Sort(expected)
	if !slices.Equal(installed, expected) {
		t.Errorf("config/admission has\n%s\nexpectedPolicies has\n%s", strings.Join(installed, "\n"), strings.Join(expected, "\n"))
	}
}

// What the trial program prints is what the doctor reads; and a log that lost
// its beginning is not taken for whole.
func TestAttachTrial(t *testing.T) {
	var out bytes.Buffer
	if err := probeAttach(strings.NewReader(question+"\n"), &out, 0); err != nil {
		t.Fatal(err)
	}
	log := readTrialLog(strings.NewReader(out.String()))
	if want := (trialLog{Answer: true, EOF: true, End: true, Bytes: printed}); log != want {
		t.Errorf("got %+v, want %+v", log, want)
	}
	if half := readTrialLog(strings.NewReader(out.String()[out.Len()/2:])); half.Answer || half.Bytes != 0 {
		t.Errorf("half a log: got %+v", half)
	}
	if err := probeAttach(strings.NewReader("half a li"), &out, 0); err == nil {
		t.Error("an input that ended without a line was answered")
	}
}

func TestLogMaxSize(t *testing.T) {
	for text, want := range map[string]int64{
		`{"kubeletconfig":{"containerLogMaxSize":"10Mi"}}`:  10 << 20,
		`{"kubeletconfig":{"containerLogMaxSize":"500Ki"}}`: 500 << 10,
		`{"kubeletconfig":{}}`:                              0,
		`not JSON`:                                          0,
	} {
		if got := parseLogMaxSize([]byte(text)); got != want {
			t.Errorf("%s: got %d, want %d", text, got, want)
		}
	}
}

// A look from a process of this machine, at a runner that is a script.
func TestLookAround(t *testing.T) {
	mount := t.TempDir()
	if err := os.WriteFile(filepath.Join(mount, "runner"), []byte("#!/bin/sh\nread x\nexit 64\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	l := lookAround(mount)
	if l.RunnerExit != 64 || l.RunnerError != "" || !l.Written || l.UIDMap == "" || !strings.Contains(l.Kernel, "#") {
		t.Errorf("got %+v", l)
	}
	if err := os.Remove(filepath.Join(mount, "runner")); err != nil {
		t.Fatal(err)
	}
	if l := lookAround(mount); l.RunnerError == "" {
		t.Errorf("a missing runner: got %+v", l)
	}
}

// A target that stops to answer is quiet after a while, and what went through
// before is counted.
func TestDialAgain(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for range 3 {
			if c, err := listener.Accept(); err == nil {
				_ = c.Close()
			}
		}
		_ = listener.Close()
	}()
	d := dialAgain("x", listener.Addr().String(), time.Now())
	if d.Successes < 3 || !d.Quiet || d.LastError == "" {
		t.Errorf("got %+v", d)
	}
	if s := sinceStart(); s <= 0 || s > time.Hour {
		t.Errorf("this process runs since %s", s)
	}
}

// What an earlier run left goes, and nothing else does.
func TestClean(t *testing.T) {
	d := Doctor{Namespace: "callgate-doctor", Image: "image", Progress: io.Discard}
	left, other, elsewhere := d.trialPod("denied", "/callgate"), d.trialPod("job", "/callgate"), d.trialPod("denied", "/callgate")
	other.Labels, elsewhere.Namespace = nil, "tools"
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: "trial-denied", Labels: left.Labels}}
	d.Client = fake.NewClientBuilder().WithObjects(left, other, elsewhere, policy).Build()
	if err := d.clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	for object, want := range map[client.Object]bool{left: false, policy: false, other: true, elsewhere: true} {
		err := d.Client.Get(t.Context(), keyOf(object), object)
		if got := err == nil; got != want {
			t.Errorf("%s/%s is there: %t (%v), want %t", object.GetNamespace(), object.GetName(), got, err, want)
		}
	}
}

// A pod that stays is named, with the bound that ended the wait.
func TestCleanIsBounded(t *testing.T) {
	d := Doctor{Namespace: "callgate-doctor", Image: "image", Progress: io.Discard}
	left := d.trialPod("denied", "/callgate")
	left.Finalizers = []string{"example.dev/stays"}
	d.Client = fake.NewClientBuilder().WithObjects(left).Build()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errPatience)
	defer cancel()
	if err := d.clean(ctx); err == nil || !strings.Contains(err.Error(), "pod trial-denied in namespace callgate-doctor not gone within 1m0s") {
		t.Errorf("got %v", err)
	}
}

// docs/doctor.md explains every row.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []Row{
		judgeVersion(""), judgeStamping(""), judgePolicies(nil), judgeForgeries(nil), judgePodSecurity(nil), judgeControllerRights(nil),
		judgeControllerExcess(nil), judgeEgress(network{}), judgeIngress(network{}), judgeWindow(network{}), judgeUserNamespace(look{}),
		judgeImageVolume(look{}), judgeRuntimeClass(runtimeClass{Name: "…"}), judgeAttach(attached{}), judgeLog(attached{}),
	} {
		if !bytes.Contains(page, []byte("\n| "+row.Check+" | ")) {
			t.Errorf("no row about %q", row.Check)
		}
	}
}
