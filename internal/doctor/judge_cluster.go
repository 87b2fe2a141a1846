package doctor

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// minVersion is the oldest Kubernetes that has all that Callgate needs.
var minVersion = version.MustParseGeneric("1.36")

func judgeVersion(gitVersion string) Row {
	r := Row{Check: "Kubernetes version", Result: OK, Seen: gitVersion}
	v, err := version.ParseGeneric(gitVersion)
	switch {
	case err != nil:
		r.Result, r.Seen, r.Do = Failed, fmt.Sprintf("the API server says it is %q, which is no version", gitVersion), "Callgate needs Kubernetes 1.36 or newer"
	case !v.AtLeast(minVersion):
		r.Result, r.Do = Failed, "Upgrade to Kubernetes 1.36 or newer: image volumes, user namespaces and MutatingAdmissionPolicy are needed"
	}
	return r
}

// judgeStamping takes the problem of stamping.Prove.
func judgeStamping(problem string) Row {
	if problem != "" {
		return Row{"who asked is stamped", Failed, problem,
			"Apply config/admission (or the chart) again; look for webhooks and policies that rewrite ToolCalls. Until then the controller takes no call"}
	}
	return Row{"who asked is stamped", OK, "a forged requester of a call and a forged approver of an approval were overwritten (dry runs)", ""}
}

// policyObject is an admission object that an install has.
type policyObject struct {
	Kind, Name string
	// Weak says why it does not refuse although it is there; empty if it does.
	Weak string
	// Missing, or else it was found.
	Missing bool
}

func judgePolicies(objects []policyObject) Row {
	r := Row{Check: "admission policies in place", Result: OK}
	var bad []string
	for _, o := range objects {
		switch {
		case o.Missing:
			bad = append(bad, o.Kind+" "+o.Name+" is missing")
		case o.Weak != "":
			bad = append(bad, o.Kind+" "+o.Name+" "+o.Weak)
		}
	}
	if len(bad) > 0 {
		r.Result, r.Seen, r.Do = Failed, some(bad), "Apply config/admission (or the chart) of this version again"
		return r
	}
	r.Seen = fmt.Sprintf("all %d policies and bindings are there, and an error of theirs refuses", len(objects))
	return r
}

// forgery is a dry-run create that a policy must refuse.
type forgery struct {
	What, Policy string
	// Err is the API server's answer; empty if it took the object.
	Err string
}

func judgeForgeries(forgeries []forgery) Row {
	r := Row{Check: "admission policies in force", Result: OK, Do: ""}
	var good, bad []string
	for _, f := range forgeries {
		switch {
		case f.Err == "":
			bad = append(bad, fmt.Sprintf("%s was taken, %s does not refuse it", f.What, f.Policy))
		case !strings.Contains(f.Err, f.Policy):
			// An error that is not the policy's refusal proves nothing about it.
			bad = append(bad, fmt.Sprintf("%s could not be tried: %s", f.What, f.Err))
		default:
			good = append(good, f.What)
		}
	}
	r.Seen = "refused: " + some(good)
	if len(bad) > 0 {
		r.Result, r.Seen, r.Do = Failed, some(bad), "Apply config/admission (or the chart) again, and config/doctor with its label and roles"
	}
	return r
}

// openedNamespace is a namespace with the label callgate.dev/tools=enabled.
type openedNamespace struct {
	Name string
	// Enforce is its label pod-security.kubernetes.io/enforce.
	Enforce string
	// Lacks are the rights of the role callgate-tool-namespace that the controller
	// does not have there.
	Lacks []string
}

func judgePodSecurity(opened []openedNamespace) Row {
	r := Row{Check: "Pod Security of opened namespaces", Result: OK}
	if len(opened) == 0 {
		return nothingOpened(r)
	}
	var lax []string
	for _, ns := range opened {
		if ns.Enforce != "restricted" {
			lax = append(lax, fmt.Sprintf("%s (%s)", ns.Name, or(ns.Enforce, "no label")))
		}
	}
	r.Seen = fmt.Sprintf("%d of %d enforce restricted", len(opened)-len(lax), len(opened))
	if len(lax) > 0 {
		r.Result, r.Seen = Warning, r.Seen+"; not "+some(lax)
		r.Do = "kubectl label namespace NAME pod-security.kubernetes.io/enforce=restricted: sandboxes meet it anyway, other pods there may not"
	}
	return r
}

func judgeControllerRights(opened []openedNamespace) Row {
	r := Row{Check: "controller's rights where tools run", Result: OK}
	if len(opened) == 0 {
		return nothingOpened(r)
	}
	var lacking []string
	for _, ns := range opened {
		if len(ns.Lacks) > 0 {
			lacking = append(lacking, fmt.Sprintf("%s: may not %s", ns.Name, some(ns.Lacks)))
		}
	}
	r.Seen = fmt.Sprintf("all of callgate-tool-namespace in each of %d opened namespaces", len(opened))
	if len(lacking) > 0 {
		r.Result, r.Seen = Failed, some(lacking)
		r.Do = "kubectl -n NAME create rolebinding callgate --clusterrole=callgate-tool-namespace --serviceaccount=CONTROLLER_NAMESPACE:callgate-controller; " +
			"or take the label callgate.dev/tools away"
	}
	return r
}

func nothingOpened(r Row) Row {
	r.Result, r.Seen, r.Do = Skipped, "no namespace has the label callgate.dev/tools=enabled", "Open one: docs/open-a-namespace.md"
	return r
}

// judgeControllerExcess takes the rights that the controller has cluster-wide and must not have.
func judgeControllerExcess(excess []string) Row {
	r := Row{Check: "controller's rights elsewhere", Result: OK, Seen: "it may not make Jobs, attach to pods or read Secrets in all namespaces"}
	if len(excess) > 0 {
		r.Result, r.Seen = Failed, "in all namespaces the controller may "+some(excess)
		r.Do = "Remove the ClusterRoleBinding that grants it: its rights to write belong into RoleBindings in opened namespaces"
	}
	return r
}

// broken is the row of a check that could not be made.
func broken(check string, err error) Row {
	return Row{check, Failed, "could not be checked: " + err.Error(), "Apply config/doctor with its roles, and look at what the message names"}
}

func or(s, def string) string {
	if s == "" {
		return def
	}
	return s
}
