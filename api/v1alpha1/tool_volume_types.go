package v1alpha1

// Volume is a volume of a tool. What is not listed here, such as hostPath,
// cannot be asked for.
// +kubebuilder:validation:XValidation:rule="[has(self.secret), has(self.configMap), has(self.persistentVolumeClaim), has(self.image)].filter(x, x).size() == 1",message="exactly one of secret, configMap, persistentVolumeClaim and image must be set"
// +kubebuilder:validation:XValidation:rule="!has(self.readOnly) || self.readOnly || has(self.persistentVolumeClaim)",message="only a persistentVolumeClaim can be written to: leave readOnly out",fieldPath=".readOnly"
// +kubebuilder:validation:XValidation:rule="!self.name.startsWith('callgate-') && self.name != 'scratch'",message="scratch, and names that begin with callgate-, are reserved",fieldPath=".name"
type Volume struct {
	// name of the volume, a DNS label; messages of the cluster speak of it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// mountPath is where the tool finds it: absolute, at most eight elements, and
	// not in or over a place that a sandbox needs for itself.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^(/[A-Za-z0-9_.@+-]+){1,8}$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('/[.][.]?(/|$)')",message="must have no element . or .."
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/.callgate') && !['/tmp', '/proc', '/sys', '/dev', '/run/secrets', '/var/run/secrets'].exists(p, self == p || self.startsWith(p + '/') || p.startsWith(self + '/'))",message="must not be in or over /.callgate…, /tmp, /proc, /sys, /dev, /run/secrets and /var/run/secrets: the sandbox needs them"
	MountPath string `json:"mountPath,omitempty"`

	// readOnly says that the tool cannot write. Only a persistentVolumeClaim can be
	// written to at all: what is in it between two calls is then the tool's matter.
	// +optional
	// +kubebuilder:default=true
	ReadOnly *bool `json:"readOnly,omitempty"`

	// secret is a Secret of the Tool's namespace, a file per key, which the tool's
	// group can read.
	// +optional
	Secret *SecretVolumeSource `json:"secret,omitempty"`

	// configMap is a ConfigMap of the Tool's namespace, a file per key.
	// +optional
	ConfigMap *ConfigMapVolumeSource `json:"configMap,omitempty"`

	// persistentVolumeClaim is a claim of the Tool's namespace.
	// +optional
	PersistentVolumeClaim *PersistentVolumeClaimVolumeSource `json:"persistentVolumeClaim,omitempty"`

	// image is the content of an image or artifact of a registry.
	// +optional
	Image *ImageVolumeSource `json:"image,omitempty"`
}

// SecretVolumeSource is a Secret as files.
type SecretVolumeSource struct {
	// secretName is the name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	SecretName string `json:"secretName,omitempty"`

	// items are the keys to show, and where. Default: all, each under its name.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Items []KeyToPath `json:"items,omitempty"`

	// optional says that calls start without the Secret or a key, if it is missing.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// ConfigMapVolumeSource is a ConfigMap as files.
type ConfigMapVolumeSource struct {
	// name of the ConfigMap.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// items are the keys to show, and where. Default: all, each under its name.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Items []KeyToPath `json:"items,omitempty"`
}

// KeyToPath shows a key of a Secret or ConfigMap as a file.
type KeyToPath struct {
	// key in the object's data.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`

	// path of the file in the volume: relative, without an element . or ..
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_.@+-]+(/[A-Za-z0-9_.@+-]+)*$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('(^|/)[.][.]') && !self.matches('(^|/)[.](/|$)')",message="must have no element that is . or begins with .."
	Path string `json:"path,omitempty"`
}

// PersistentVolumeClaimVolumeSource is a claim of the Tool's namespace.
type PersistentVolumeClaimVolumeSource struct {
	// claimName is the name of the PersistentVolumeClaim.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ClaimName string `json:"claimName,omitempty"`
}

// ImageVolumeSource is the content of an image.
type ImageVolumeSource struct {
	// reference of the image, as container.image.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^\S+$`
	Reference string `json:"reference,omitempty"`
}
