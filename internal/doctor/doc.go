// Package doctor proves, by trying, that the cluster at hand keeps what
// Callgate promises. Judgements are pure functions over what was seen; the rest
// only gathers that, with trial pods in a namespace of its own.
package doctor
