package sandbox

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

// RuntimeClasses are an installation's rules about the RuntimeClass of Tools.
type RuntimeClasses struct {
	// Default is that of Tools that name none; empty means that of the nodes.
	Default string
	// Required lists those that a Tool may have; empty means any, or none.
	Required []string
}

// Of is the name of the RuntimeClass of a Tool's sandboxes; empty means none.
func (c RuntimeClasses) Of(t *v1alpha1.Tool) string {
	return orDefault(t.Spec.Isolation.RuntimeClassName, c.Default)
}

// Refuse says why a Tool may not run with the RuntimeClass it has, or "".
func (c RuntimeClasses) Refuse(t *v1alpha1.Tool) string {
	name := c.Of(t)
	if len(c.Required) == 0 || slices.Contains(c.Required, name) {
		return ""
	}
	allowed := strings.Join(c.Required, ", ")
	if name == "" {
		return fmt.Sprintf("spec.isolation.runtimeClassName names no RuntimeClass, and this installation allows only %s (--require-runtime-class): name one of them", allowed)
	}
	return fmt.Sprintf("spec.isolation.runtimeClassName: RuntimeClass %q is none of those that this installation allows, which are %s (--require-runtime-class): name one of them", name, allowed)
}

// Missing says that the RuntimeClass of a Tool does not exist.
func (c RuntimeClasses) Missing(t *v1alpha1.Tool) string {
	if t.Spec.Isolation.RuntimeClassName == "" {
		return fmt.Sprintf("there is no RuntimeClass %q, which Tools have that name none in spec.isolation.runtimeClassName (--default-runtime-class); kubectl get runtimeclasses lists them", c.Default)
	}
	return fmt.Sprintf("spec.isolation.runtimeClassName: there is no RuntimeClass %q; kubectl get runtimeclasses lists them", t.Spec.Isolation.RuntimeClassName)
}

// maxNodeNames bounds the names of nodes in a message.
const maxNodeNames = 3

// gVisor are the usual names of gVisor's handler. Its runsc reports support for
// user namespaces, but no pod with hostUsers: false starts under it: its gofer
// would have to enter the namespace that containerd made, and no process with
// several threads can ("error setting namespace of type user"; gVisor of
// September 2026, containerd 2.4).
var gVisor = []string{"runsc", "gvisor"}

// Users says whether the sandboxes of a RuntimeClass, nil for none, have a user
// namespace of their own (hostUsers: false), and in words why. They have, unless
// the handler that runs them is gVisor's or reports on each eligible node that it
// cannot. Where
// nodes differ they do not start on those that cannot: isolation is not given up
// for all because of one node. A node that reports no handlers says nothing. Only
// names, labels and handlers of nodes count, none of which changes by the minute.
func Users(class *nodev1.RuntimeClass, nodes []corev1.Node) (namespace bool, words string) {
	handler, under := "", "sandboxes run"
	selector := labels.Everything()
	if class != nil {
		handler, under = class.Handler, fmt.Sprintf("sandboxes run under RuntimeClass %q", class.Name)
		if class.Scheduling != nil {
			selector = labels.SelectorFromSet(class.Scheduling.NodeSelector)
		}
	}
	if class != nil && slices.Contains(gVisor, handler) {
		return false, under + fmt.Sprintf(" without a user namespace of Kubernetes: its handler %q is gVisor's, which does not start in one, whatever the nodes report", handler)
	}
	able := 0
	var unable []string
	for i := range nodes {
		node := &nodes[i]
		if node.Labels[corev1.LabelOSStable] == "windows" || !selector.Matches(labels.Set(node.Labels)) {
			continue
		}
		j := slices.IndexFunc(node.Status.RuntimeHandlers, func(h corev1.NodeRuntimeHandler) bool { return h.Name == handler })
		if j < 0 {
			continue // the kubelet does not start a pod with a handler that it does not know
		}
		if f := node.Status.RuntimeHandlers[j].Features; f != nil && ptr.Deref(f.UserNamespaces, false) {
			able++
		} else {
			unable = append(unable, node.Name)
		}
	}
	slices.Sort(unable)
	names := strings.Join(unable[:min(len(unable), maxNodeNames)], ", ")
	if more := len(unable) - maxNodeNames; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	switch {
	case len(unable) == 0:
		return true, under + " in a user namespace (hostUsers: false)"
	case able > 0 && class == nil:
		return true, under + " in a user namespace (hostUsers: false); warning: they do not start on " + names +
			", whose container runtime reports no support for it: update it, or name a RuntimeClass whose scheduling.nodeSelector leaves those nodes out"
	case able > 0:
		return true, under + " in a user namespace (hostUsers: false); warning: they do not start on " + names +
			fmt.Sprintf(", whose handler %q reports no support for it: update it, or leave those nodes out in the RuntimeClass's scheduling.nodeSelector", handler)
	case class == nil:
		return false, "warning: " + under + " WITHOUT a user namespace: the container runtime of no node reports support for it; " +
			"update the nodes, or name a RuntimeClass that isolates in another way in spec.isolation.runtimeClassName"
	default:
		return false, under + fmt.Sprintf(" without a user namespace of Kubernetes: its handler %q reports no support for it on any node", handler)
	}
}
