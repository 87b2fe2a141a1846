package controllers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"callgate.dev/callgate/internal/dispatch"
	"callgate.dev/callgate/internal/wire"
)

const (
	// resultKeySecret is the Secret in the controller's namespace with the key that
	// all results are sealed under. config/rbac grants its name.
	resultKeySecret = "callgate-result-key"
	// resultKeyEntry is its only key.
	resultKeyEntry = "key"
)

// errResultKey is wrapped if the Secret is there and has no key that can be used.
var errResultKey = errors.New("it must have 32 random bytes: delete it, and the controller makes a new one")

// resultKey has the key that results are sealed under, so that nobody reads them
// in the log of a node, and the next leader does. It is read, and made if it is
// not there, by a leader only: one that waits might hold a key that was replaced.
type resultKey struct {
	client    client.Client
	reader    client.Reader // past the cache, which has no Secret
	namespace string

	turn chan struct{} // held by who looks at key
	key  []byte
}

func newResultKey(c client.Client, reader client.Reader, namespace string) *resultKey {
	return &resultKey{client: c, reader: reader, namespace: namespace, turn: make(chan struct{}, 1)}
}

// Start makes the key before the first call needs it. A failure is met again, and
// told, by each call that needs it.
func (k *resultKey) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	if _, err := k.get(ctx); err != nil {
		log.FromContext(ctx).Error(err, "Results cannot be sealed")
	}
	return nil
}

// of is the key for the one attempt that t names.
func (k *resultKey) of(ctx context.Context, t dispatch.Target) (wire.Key, error) {
	key, err := k.get(ctx)
	if err != nil {
		return nil, err
	}
	seal, err := wire.NewSeal(key, string(t.CallUID), t.Attempt, string(t.PodUID))
	return seal.Key, err
}

func (k *resultKey) get(ctx context.Context) ([]byte, error) {
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the key that results are sealed with: %w", ctx.Err())
	}
	if k.key != nil {
		return k.key, nil
	}
	key, err := k.read(ctx)
	if apierrors.IsNotFound(err) {
		key, err = k.create(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("the key that results are sealed with, Secret %s/%s: %w", k.namespace, resultKeySecret, err)
	}
	k.key = key
	return key, nil
}

func (k *resultKey) read(ctx context.Context) ([]byte, error) {
	secret := &corev1.Secret{}
	if err := k.reader.Get(ctx, client.ObjectKey{Namespace: k.namespace, Name: resultKeySecret}, secret); err != nil {
		return nil, err
	}
	if key := secret.Data[resultKeyEntry]; len(key) == wire.KeyBytes {
		return key, nil
	}
	return nil, fmt.Errorf("its entry %q has %d bytes; %w", resultKeyEntry, len(secret.Data[resultKeyEntry]), errResultKey)
}

func (k *resultKey) create(ctx context.Context) ([]byte, error) {
	key := make([]byte, wire.KeyBytes)
	_, _ = rand.Read(key) // never fails
	err := k.client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: resultKeySecret},
		Immutable:  ptr.To(true),
		Data:       map[string][]byte{resultKeyEntry: key},
	})
	if apierrors.IsAlreadyExists(err) {
		return k.read(ctx) // another controller was first
	}
	return key, err
}

// lasting says whether an error about the key is one that no time cures.
func lasting(err error) bool { return errors.Is(err, errResultKey) || apierrors.IsForbidden(err) }
