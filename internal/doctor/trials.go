package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	// lookTime is how long a program that only looks may take.
	lookTime = 30 * time.Second
	// dialTime is how long a trial pod may try to reach something, beside its start.
	dialTime = 45 * time.Second
)

// tryLook lets a pod say what it sees of itself.
func (d *Doctor) tryLook(ctx context.Context, trial, class string, volume, userNamespace bool) (l look) {
	pod := withClass(d.trialPod(trial, "/callgate", "doctor", "probe", "look"), class)
	if volume {
		d.withRunner(pod)
	}
	if userNamespace {
		pod.Spec.HostUsers = ptr.To(false)
	}
	pod, err := d.start(ctx, pod)
	if err == nil {
		var report []byte
		if report, err = d.report(ctx, pod, lookTime); err == nil {
			err = json.Unmarshal(report, &l)
		}
	}
	if err != nil {
		return look{Failure: err.Error()}
	}
	l.Node = pod.Spec.NodeName
	return l
}

// tryNetwork starts a server, then a pod that a deny-all policy holds for, then
// one without, and lets both try to reach what they can. The policy is there
// before its pod.
func (d *Doctor) tryNetwork(ctx context.Context) (n network) {
	api := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), or(os.Getenv("KUBERNETES_SERVICE_PORT"), "443"))
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: "trial-denied", Labels: map[string]string{labelTrial: "denied"}},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{labelTrial: "denied"}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		},
	}
	if err := d.Client.Create(ctx, policy); err != nil {
		n.Denied.Failure = fmt.Sprintf("NetworkPolicy %s was not taken: %v", policy.Name, err)
		return n
	}
	server, failure := d.dial(ctx, "server", &dialing{})
	if failure != "" {
		n.Denied.Failure = failure
		return n
	}
	denied, failure := d.dial(ctx, "denied", &n.Denied, targetServer+"="+server, targetAPI+"="+api)
	if n.Denied.Failure = failure; failure != "" {
		return n
	}
	_, n.Open.Failure = d.dial(ctx, "open", &n.Open, targetServer+"="+server, targetAPI+"="+api, targetDenied+"="+denied)
	return n
}

// dial starts a pod that listens and tries to reach the targets, and waits for
// its report. It returns where the pod listens, or what went wrong.
func (d *Doctor) dial(ctx context.Context, trial string, to *dialing, targets ...string) (address, failure string) {
	pod, err := d.start(ctx, d.trialPod(trial, append([]string{"/callgate", "doctor", "probe", "network"}, targets...)...))
	if err != nil {
		return "", err.Error()
	}
	report, err := d.report(ctx, pod, dialTime)
	if err == nil {
		err = json.Unmarshal(report, to)
	}
	if err != nil {
		return "", err.Error()
	}
	// The container runs, so the kubelet knows the address; it may report it a moment later.
	err = poll(ctx, lookTime, func(ctx context.Context) (bool, error) {
		if pod.Status.PodIP != "" {
			return true, nil
		}
		return false, d.Client.Get(ctx, keyOf(pod), pod)
	})
	if err != nil {
		return "", fmt.Sprintf("pod %s has no address: %v", pod.Name, err)
	}
	return net.JoinHostPort(pod.Status.PodIP, probePort), ""
}
