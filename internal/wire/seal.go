package wire

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

// KeyBytes is the length of the controller's key and of every key made from it.
const KeyBytes = 32

// Key seals and opens the result of one attempt in one pod. It travels in the
// call and is printed by nothing.
type Key []byte

// String hides the key from every format verb but those for bytes.
func (Key) String() string { return "[key]" }

// GoString does so for %#v.
func (Key) GoString() string { return "[key]" }

// Seal is a key and whose result it belongs to: what is sealed with one opens
// with an equal one only.
type Seal struct {
	CallUID string
	Attempt int32
	PodUID  string
	Key     Key
}

// NewSeal derives the key of one attempt of a call in one pod from the
// controller's key, which has KeyBytes.
func NewSeal(controllerKey []byte, callUID string, attempt int32, podUID string) (Seal, error) {
	s := Seal{CallUID: callUID, Attempt: attempt, PodUID: podUID}
	if len(controllerKey) != KeyBytes {
		return Seal{}, fmt.Errorf("the controller's key has %d bytes, it must have %d", len(controllerKey), KeyBytes)
	}
	key, err := hkdf.Key(sha256.New, controllerKey, nil, string(s.binding()), KeyBytes)
	if err != nil {
		return Seal{}, fmt.Errorf("derive the key of a result: %w", err)
	}
	s.Key = key
	return s, nil
}

// binding names the purpose and the attempt; no two attempts have the same one.
func (s Seal) binding() []byte {
	return fmt.Appendf(nil, "callgate result %q %d %q", s.CallUID, s.Attempt, s.PodUID)
}

func (s Seal) aead() (cipher.AEAD, error) {
	if len(s.Key) != KeyBytes {
		return nil, fmt.Errorf("the key has %d bytes, it must have %d", len(s.Key), KeyBytes)
	}
	block, err := aes.NewCipher(s.Key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// seal returns a random nonce and the sealed payload.
func (s Seal) seal(payload []byte) ([]byte, error) {
	aead, err := s.aead()
	if err != nil {
		return nil, fmt.Errorf("seal the result: %w", err)
	}
	nonce := make([]byte, aead.NonceSize(), aead.NonceSize()+len(payload)+aead.Overhead())
	_, _ = rand.Read(nonce) // never fails
	return aead.Seal(nonce, nonce, payload, s.binding()), nil
}

var errForeignSeal = errors.New("it does not open with the key of this attempt: it is not the runner's, or the controller's key (Secret callgate-result-key) was replaced since the call was sent")

// open is the inverse of seal.
func (s Seal) open(sealed []byte) ([]byte, error) {
	if len(s.Key) == 0 {
		return nil, errors.New("it is sealed, and the key to open it is not there")
	}
	aead, err := s.aead()
	if err != nil {
		return nil, fmt.Errorf("open the result: %w", err)
	}
	if len(sealed) < aead.NonceSize() {
		return nil, errForeignSeal
	}
	payload, err := aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], s.binding())
	if err != nil {
		return nil, errForeignSeal
	}
	return payload, nil
}
