package main

import (
	"context"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"callgate.dev/callgate/internal/sandbox"
)

// closeStdin ends the stdin of a sandbox that waits for its call.
func closeStdin(ctx context.Context, r *recorder, s seen) error {
	clientset, err := kubernetes.NewForConfig(r.config)
	if err != nil {
		return err
	}
	url := clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(s.Pod.Namespace).Name(s.Pod.Name).SubResource("attach").
		VersionedParams(&corev1.PodAttachOptions{Container: sandbox.Container, Stdin: true, Stdout: true}, scheme.ParameterCodec).URL()
	executor, err := remotecommand.NewWebSocketExecutor(r.config, "GET", url.String())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: io.Discard})
}
