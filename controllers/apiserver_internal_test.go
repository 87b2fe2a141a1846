package controllers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
)

// endpointReader answers with the endpoints of an API server, or with an error.
type endpointReader struct {
	client.Reader
	err   error
	reads int
}

func (r *endpointReader) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	r.reads++
	if r.err == nil {
		slice := o.(*discoveryv1.EndpointSlice)
		slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"192.168.1.10"}}}
		slice.Ports = []discoveryv1.EndpointPort{{Port: ptr.To[int32](6443)}, {Protocol: ptr.To(corev1.ProtocolUDP), Port: ptr.To[int32](53)}}
	}
	return r.err
}

func TestWhereTheAPIServerIs(t *testing.T) {
	t.Parallel()
	elsewhere := &v1alpha1.Tool{}
	elsewhere.Spec.Isolation.Network.Egress = []networkingv1.NetworkPolicyEgressRule{{
		To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "203.0.113.0/24"}}}}}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "endpointslices"}, "kubernetes", errors.New("no"))
	reader := &endpointReader{err: errors.New("the API server is busy")}
	api := &apiServer{reader: reader, service: "10.96.0.1:443", required: true}
	look := func(reason string, wantProbe bool, wantWords string) {
		t.Helper()
		proof, words, err := api.probe(t.Context(), elsewhere)
		probe := proof == sandbox.ProveRefusal
		if err != nil || probe != wantProbe || !strings.Contains(words, wantWords) || words == "" != (wantWords == "") {
			t.Errorf("%s: probe %v, %q, %v; want %v, %q", reason, probe, words, err, wantProbe, wantWords)
		}
	}

	// What time cures must not let a tool run without the proof.
	if probe, _, err := api.probe(t.Context(), elsewhere); err == nil || probe != sandbox.NoProof {
		t.Errorf("an API server that is busy is no answer: %v, %v", probe, err)
	}
	reader.err = forbidden
	look("what time does not cure", false, "could not be found out")
	reader.err, api.until = nil, time.Time{}
	look("it is known", true, "")
	if got := api.known.Addresses; len(got) != 2 || got[0].String() != "192.168.1.10:6443" || got[1].String() != "10.96.0.1:443" {
		t.Errorf("the addresses are %v", got)
	}
	before := reader.reads
	look("it is asked once a minute", true, "")
	if reader.reads != before {
		t.Error("it was read again at once")
	}
	for _, err := range []error{errors.New("the API server is busy"), forbidden} {
		reader.err, api.until = err, time.Time{}
		look("what was known stays", true, "")
	}
	api = &apiServer{reader: &endpointReader{}, service: "api.example.com:443", required: true}
	look("a Service by its name", false, "could not be found out")
	unread := &endpointReader{err: errors.New("not to be read")}
	api = &apiServer{reader: unread, required: false}
	look("switched off", false, "--require-network-isolation=false")
	if probe, words, err := (&apiServer{reader: unread, required: true}).probe(t.Context(), &v1alpha1.Tool{}); probe != sandbox.NoProof || words != "" || err != nil {
		t.Errorf("without sockets: %v, %q, %v", probe, words, err)
	}
	if unread.reads > 0 {
		t.Error("it was read though nobody has to know")
	}
}
