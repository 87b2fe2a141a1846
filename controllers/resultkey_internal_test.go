package controllers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"callgate.dev/callgate/internal/dispatch"
	"callgate.dev/callgate/internal/wire"
)

var secrets = schema.GroupResource{Resource: "secrets"}

func TestResultKeyErrors(t *testing.T) {
	stored := func(entry string, bytes int) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "install", Name: resultKeySecret}, Data: map[string][]byte{entry: make([]byte, bytes)}}
	}
	forbidden := apierrors.NewForbidden(secrets, resultKeySecret, errors.New("no right"))
	for _, tc := range []struct {
		reason      string
		secret      *corev1.Secret
		get, create error
		says        string
		lasting     bool
	}{
		{reason: "not there: made", secret: nil},
		{reason: "there", secret: stored("key", wire.KeyBytes)},
		{reason: "too short", secret: stored("key", 16), says: `Secret install/callgate-result-key: its entry "key" has 16 bytes; it must have 32 random bytes: delete it`, lasting: true},
		{reason: "under another name", secret: stored("other", wire.KeyBytes), says: "has 0 bytes", lasting: true},
		{reason: "not to be read", get: forbidden, says: "no right", lasting: true},
		{reason: "not to be made", create: forbidden, says: "no right", lasting: true},
		{reason: "an API server that is slow", get: apierrors.NewTimeoutError("slow", 1), says: "slow"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			reads := 0
			b := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if reads++; tc.get != nil {
						return tc.get
					}
					return c.Get(ctx, key, o, opts...)
				},
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					if tc.create != nil {
						return tc.create
					}
					return c.Create(ctx, o, opts...)
				},
			})
			if tc.secret != nil {
				b = b.WithObjects(tc.secret)
			}
			server := b.Build()
			k := newResultKey(server, server, "install")
			key, err := k.get(t.Context())
			if tc.says != "" {
				if err == nil || !strings.Contains(err.Error(), tc.says) || lasting(err) != tc.lasting {
					t.Errorf("error %v, lasting %t; want %q, %t", err, lasting(err), tc.says, tc.lasting)
				}
				if again, err := k.get(t.Context()); err == nil {
					t.Errorf("asked again there is %v", again)
				}
				return
			}
			if err != nil || len(key) != wire.KeyBytes {
				t.Fatalf("%d bytes, %v", len(key), err)
			}
			if again, err := k.get(t.Context()); err != nil || !slices.Equal(key, again) || reads != 1 {
				t.Errorf("asked again it is another one (%v), %d reads", err, reads)
			}
		})
	}
}

// TestTwoControllersHaveOneKey: both find none, and only one can make it.
func TestTwoControllersHaveOneKey(t *testing.T) {
	server := fake.NewClientBuilder().Build()
	other := newResultKey(server, server, "install")
	var otherKey []byte
	racing := interceptor.NewClient(server, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			var err error
			if otherKey, err = other.get(ctx); err != nil {
				t.Error(err)
			}
			return c.Create(ctx, o, opts...)
		},
	})
	key, err := newResultKey(racing, racing, "install").get(t.Context())
	if err != nil || len(key) != wire.KeyBytes || !slices.Equal(key, otherKey) {
		t.Errorf("the keys differ, or there is none: %v", err)
	}
}

func TestWaitingForTheKeyHasAnEnd(t *testing.T) {
	k := newResultKey(nil, nil, "install")
	k.turn <- struct{}{} // somebody's request hangs
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.of(ctx, dispatch.Target{}); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "wait for the key") {
		t.Errorf("error %v", err)
	}
}
