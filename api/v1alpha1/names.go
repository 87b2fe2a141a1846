package v1alpha1

// Labels and annotations on the objects that the controller makes, and on the
// namespaces it may make them in.
const (
	// LabelInstall holds the install ID, which is the name of the namespace the
	// controller runs in.
	LabelInstall = "callgate.dev/install"
	// LabelToolUID holds the UID of the Tool that a sandbox was made for.
	LabelToolUID = "callgate.dev/tool-uid"
	// LabelCallUID holds the UID of the ToolCall that a sandbox was made for.
	LabelCallUID = "callgate.dev/call-uid"
	// LabelAttempt holds the number of the attempt, from 1.
	LabelAttempt = "callgate.dev/attempt"
	// LabelPool holds the key of the warm pool that a sandbox was made for.
	LabelPool = "callgate.dev/pool"
	// AnnotationCall holds namespace/name of the ToolCall that a sandbox was made for.
	AnnotationCall = "callgate.dev/call"
	// AnnotationTool holds the name of the Tool, beside LabelToolUID.
	AnnotationTool = "callgate.dev/tool"
	// LabelTools on a namespace, with the value LabelToolsEnabled, opens it for Tools.
	LabelTools = "callgate.dev/tools"
	// LabelToolsEnabled is the value of LabelTools in an opened namespace.
	LabelToolsEnabled = "enabled"
)

// FunctionName is the name a model sees: spec.functionName, else the object's name.
func (t *Tool) FunctionName() string {
	if t.Spec.FunctionName != "" {
		return t.Spec.FunctionName
	}
	return t.Name
}
