package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
)

// StdinMode says what a tool reads on its standard input.
// +kubebuilder:validation:Enum=Args;None
type StdinMode string

// What a tool reads on its standard input.
const (
	// StdinArgs: the arguments as one JSON object. The default.
	StdinArgs StdinMode = "Args"
	// StdinNone: /dev/null.
	StdinNone StdinMode = "None"
)

// ToolContainer is the program of a Tool.
type ToolContainer struct {
	// image is the container image, as in a pod.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^\S+$`
	Image string `json:"image,omitempty"`

	// protocol is how the program is called. Stdio, the default and only value
	// served: arguments on stdin, the result on stdout, exit code 0 for success.
	// +optional
	// +kubebuilder:default=Stdio
	// +kubebuilder:validation:Enum=Stdio
	Protocol string `json:"protocol,omitempty"`

	// command replaces the image's entrypoint: program and arguments, never a
	// shell of ours. $(args.x) stands for the argument x: a string as it is, any
	// other value as compact JSON; if x is absent or null the whole element is
	// dropped. $$( is a literal $(.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=32768
	Command []string `json:"command,omitempty"`

	// stdin says what the tool reads on standard input.
	// +optional
	// +kubebuilder:default=Args
	Stdin StdinMode `json:"stdin,omitempty"`

	// env adds to the environment of the tool. Nothing in a value is expanded.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=128
	Env []EnvVar `json:"env,omitempty"`

	// resources of the tool's container. Limits default to 500m CPU and 128Mi
	// memory, requests to 10m and 32Mi.
	// +optional
	Resources ToolResources `json:"resources,omitzero"`

	// runAsUser is the user the tool runs as, never root. Default 65532. It is
	// the group, too.
	// +optional
	// +kubebuilder:default=65532
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	RunAsUser int64 `json:"runAsUser,omitempty"`

	// imagePullSecrets are Secrets of the Tool's namespace, as in a pod.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`

	// serviceAccountName is a ServiceAccount of the Tool's namespace that the tool
	// acts as: it finds a token that lives about as long as a call, ca.crt and
	// namespace in /var/run/secrets/kubernetes.io/serviceaccount. Default: none,
	// and no token.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// volumes are what the tool finds in its file system beside its image.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Volumes []Volume `json:"volumes,omitempty"`
}

// EnvVar is one environment variable of a tool.
// +kubebuilder:validation:XValidation:rule="has(self.value) != has(self.valueFrom)",message="exactly one of value and valueFrom must be set"
// +kubebuilder:validation:XValidation:rule="!self.name.startsWith('KUBERNETES_') && !self.name.startsWith('CALLGATE_')",message="names that begin with KUBERNETES_ or CALLGATE_ are reserved",fieldPath=".name"
type EnvVar struct {
	// name of the variable.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	Name string `json:"name,omitempty"`

	// value as it is; no $(…) is expanded.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	Value *string `json:"value,omitempty"`

	// valueFrom takes the value from an object of the Tool's namespace.
	// +optional
	ValueFrom *EnvVarSource `json:"valueFrom,omitempty"`
}

// EnvVarSource is where the value of a variable comes from.
// +kubebuilder:validation:XValidation:rule="has(self.secretKeyRef) != has(self.configMapKeyRef)",message="exactly one of secretKeyRef and configMapKeyRef must be set"
type EnvVarSource struct {
	// secretKeyRef names a key of a Secret.
	// +optional
	SecretKeyRef *KeySelector `json:"secretKeyRef,omitempty"`
	// configMapKeyRef names a key of a ConfigMap.
	// +optional
	ConfigMapKeyRef *KeySelector `json:"configMapKeyRef,omitempty"`
}

// KeySelector names a key of a Secret or ConfigMap in the Tool's namespace.
type KeySelector struct {
	// name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// key in the object's data.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`
}

// ToolResources are the limits and requests of a tool's container.
type ToolResources struct {
	// limits of the container, as in a pod.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Limits corev1.ResourceList `json:"limits,omitempty"`
	// requests of the container, as in a pod.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Requests corev1.ResourceList `json:"requests,omitempty"`
}
