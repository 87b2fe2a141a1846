package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
)

// apiServerAge is how old what is known of the API server's addresses may be;
// they change when a control plane grows or moves.
const apiServerAge = time.Minute

// apiServer knows the API server's addresses, of which Tools' egress decides
// whether a sandbox can prove that its NetworkPolicy is in force.
type apiServer struct {
	reader  client.Reader
	service string // host:port, as in the environment of a pod
	// required is --require-network-isolation.
	required bool

	mu    sync.Mutex
	known sandbox.APIServer
	until time.Time
}

// probe says whether the sandboxes of a Tool have to prove that its NetworkPolicy
// is in force, and if not, why.
func (a *apiServer) probe(ctx context.Context, t *v1alpha1.Tool) (sandbox.Proof, string, error) {
	var known sandbox.APIServer
	if a.required && sandbox.AllowSockets(t) {
		var err error
		if known, err = a.addresses(ctx); err != nil {
			return sandbox.NoProof, "", err
		}
	}
	probe, words := sandbox.Probe(t, a.required, known)
	return probe, words, nil
}

// addresses fails only if nothing is known, and time may cure that.
func (a *apiServer) addresses(ctx context.Context) (sandbox.APIServer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Now().Before(a.until) {
		return a.known, nil
	}
	slice := &discoveryv1.EndpointSlice{}
	// The API server itself keeps this object, by this name.
	err := a.reader.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceDefault, Name: "kubernetes"}, slice)
	service, parseErr := netip.ParseAddrPort(a.service)
	switch {
	case err != nil && !a.known.Known && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
		return a.known, fmt.Errorf("read the API server's endpoints: %w", err)
	case err != nil: // what was known stays
		log.FromContext(ctx).Error(err, "The API server's endpoints cannot be read")
	case parseErr != nil:
		log.FromContext(ctx).Info("The address of the API server's Service is not known: KUBERNETES_SERVICE_HOST is no IP address", "address", a.service)
	default:
		a.known = sandbox.APIServer{Known: true, Addresses: append(endpoints(slice), service)}
	}
	a.until = time.Now().Add(apiServerAge)
	return a.known, nil
}

func endpoints(slice *discoveryv1.EndpointSlice) (all []netip.AddrPort) {
	for _, e := range slice.Endpoints {
		for _, text := range e.Addresses {
			addr, err := netip.ParseAddr(text)
			for _, p := range slice.Ports {
				if err == nil && p.Port != nil && ptr.Deref(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP {
					all = append(all, netip.AddrPortFrom(addr, uint16(*p.Port)))
				}
			}
		}
	}
	return all
}
