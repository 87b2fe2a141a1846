package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/policy"
)

const sayUsage = `Usage: kubectl callgate %s NAME [--reason TEXT] [-n NAMESPACE]

%s the ToolCall NAME, which waits for approval: prints what it is, and creates a ToolCallApproval for exactly that, in
your name. It is deleted together with the call. Exit code 1 says that nothing was created, or that it does not count.

`

// requestTimeout bounds each request to the API server.
const requestTimeout = 30 * time.Second

// say is `kubectl callgate approve` and `kubectl callgate deny`.
func say(decision v1alpha1.ApprovalDecision, args []string, stdout, stderr io.Writer) int {
	command := strings.ToLower(string(decision))
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	flags.SetOutput(stderr)
	loading := clientcmd.NewDefaultClientConfigLoadingRules()
	var overrides clientcmd.ConfigOverrides
	reason := flags.String("reason", "", "why, at most 512 characters; the caller reads it if the call is denied")
	for _, name := range []string{"n", "namespace"} {
		flags.StringVar(&overrides.Context.Namespace, name, "", "namespace of the call; without it, that of the context")
	}
	connectionFlags(flags, loading, &overrides)
	flags.Usage = func() {
		fmt.Fprintf(stderr, sayUsage, command, map[v1alpha1.ApprovalDecision]string{
			v1alpha1.DecisionApprove: "Approves", v1alpha1.DecisionDeny: "Denies"}[decision])
		flags.PrintDefaults()
	}
	names, err := parseAnyOrder(flags, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil: // the flag set has printed it
		return exitUsage
	}
	fail := func(code int, err error) int {
		fmt.Fprintf(stderr, "kubectl callgate %s: %v\n", command, err)
		return code
	}
	if len(names) != 1 {
		return fail(exitUsage, fmt.Errorf("want the NAME of one ToolCall, got %d", len(names)))
	}
	c, namespace, err := connect(clientcmd.NewNonInteractiveDeferredLoadingClientConfig(loading, &overrides))
	if err != nil {
		return fail(exitError, err)
	}
	call := &v1alpha1.ToolCall{}
	if err := c.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: names[0]}, call); err != nil {
		return fail(exitError, err)
	}
	if err := inVain(call, decision); err != nil {
		return fail(exitError, err)
	}
	fmt.Fprint(stdout, describe(call))
	approval := approvalOf(call, decision, *reason)
	if err := c.Create(context.Background(), approval); err != nil {
		return fail(exitError, err)
	}
	if approval.Spec.Approver == nil {
		return fail(exitError, fmt.Errorf("it does not count: the API server did not write who created toolcallapproval/%s; Callgate's admission policies are not in force", approval.Name))
	}
	fmt.Fprintf(stdout, "\n%s by %s: toolcallapproval/%s created\n", decision, shown(approval.Spec.Approver.Username), approval.Name)
	if err := doesNotCount(call, *approval.Spec.Approver); err != nil {
		return fail(exitError, err)
	}
	return exitOK
}

// connectionFlags are kubectl's, which it does not pass to plugins.
func connectionFlags(flags *flag.FlagSet, loading *clientcmd.ClientConfigLoadingRules, overrides *clientcmd.ConfigOverrides) {
	flags.StringVar(&loading.ExplicitPath, "kubeconfig", "", "kubeconfig file")
	flags.StringVar(&overrides.CurrentContext, "context", "", "context of the kubeconfig file")
	flags.StringVar(&overrides.AuthInfo.Impersonate, "as", "", "user to impersonate")
	flags.Func("as-group", "group to impersonate; may be repeated", func(group string) error {
		overrides.AuthInfo.ImpersonateGroups = append(overrides.AuthInfo.ImpersonateGroups, group)
		return nil
	})
}

func connect(config clientcmd.ClientConfig) (c client.Client, namespace string, err error) {
	if namespace, _, err = config.Namespace(); err != nil {
		return nil, "", err
	}
	cfg, err := config.ClientConfig()
	if err != nil {
		return nil, "", err
	}
	cfg.Timeout = requestTimeout
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme), rbacv1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme)); err != nil {
		return nil, "", err
	}
	c, err = client.New(cfg, client.Options{Scheme: scheme})
	return c, namespace, err
}

// inVain is why nothing can be said to a call any more, or yet; nil if it can.
func inVain(call *v1alpha1.ToolCall, decision v1alpha1.ApprovalDecision) error {
	s, name := call.Status, call.Namespace+"/"+call.Name
	condition := func(kind string) metav1.Condition {
		if c := apimeta.FindStatusCondition(s.Conditions, kind); c != nil {
			return *c
		}
		return metav1.Condition{}
	}
	switch {
	case condition(v1alpha1.ConditionComplete).Status == metav1.ConditionTrue:
		return fmt.Errorf("ToolCall %s is complete (%s)", name, condition(v1alpha1.ConditionSucceeded).Reason)
	case len(s.Conditions) == 0:
		return fmt.Errorf("the controller has not looked at ToolCall %s yet: try again in a moment", name)
	case len(s.Attempts) > 0 && s.Attempts[len(s.Attempts)-1].Outcome == "":
		return fmt.Errorf("ToolCall %s was sent to its sandbox already; its spec.cancel stops it", name)
	case len(s.Approvals) == 0 || s.ApprovalDigest == "":
		return fmt.Errorf("ToolCall %s asks nobody for approval; it is %s: %s", name,
			condition(v1alpha1.ConditionSucceeded).Reason, shown(condition(v1alpha1.ConditionSucceeded).Message))
	case decision == v1alpha1.DecisionApprove && condition(v1alpha1.ConditionApproved).Status == metav1.ConditionTrue:
		return fmt.Errorf("ToolCall %s has its approvals; it is %s", name, condition(v1alpha1.ConditionSucceeded).Reason)
	}
	return nil
}

func approvalOf(call *v1alpha1.ToolCall, decision v1alpha1.ApprovalDecision, reason string) *v1alpha1.ToolCallApproval {
	return &v1alpha1.ToolCallApproval{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: call.Namespace, GenerateName: call.Name + "-",
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "ToolCall", Name: call.Name, UID: call.UID}},
		},
		Spec: v1alpha1.ToolCallApprovalSpec{
			ToolCallRef: v1alpha1.ApprovedCallReference{Name: call.Name, UID: call.UID, ApprovalDigest: call.Status.ApprovalDigest},
			Decision:    decision, Reason: reason,
		},
	}
}

// doesNotCount is why the word of somebody changes nothing for a call.
func doesNotCount(call *v1alpha1.ToolCall, who v1alpha1.Requester) error {
	if q := call.Spec.Requester; q != nil && q.Username == who.Username {
		return errors.New("it does not count: you created the call yourself")
	}
	for _, a := range call.Status.Approvals {
		if policy.Includes(a.Approvers, who) {
			return nil
		}
	}
	return errors.New("it does not count: you are not among the approvers of any rule that asks")
}
