package controllers

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"callgate.dev/callgate/api/v1alpha1"
)

func TestCompiledCache(t *testing.T) {
	var c compiledCache[string]
	compilations := 0
	get := func(uid types.UID, generation int64) string {
		o := &v1alpha1.Tool{ObjectMeta: metav1.ObjectMeta{Namespace: "tools", Name: "a", UID: uid, Generation: generation}}
		return c.get(o, func() string { compilations++; return fmt.Sprint(uid, generation) })
	}
	key := types.NamespacedName{Namespace: "tools", Name: "a"}
	for generation := range int64(100) {
		for range 3 {
			if got := get("u", generation); got != fmt.Sprint("u", generation) {
				t.Fatalf("generation %d is %s", generation, got)
			}
		}
	}
	if compilations != 100 {
		t.Errorf("%d compilations of 100 generations", compilations)
	}
	if n := len(c.entries[key]); n != keptGenerations {
		t.Errorf("%d generations are kept, want %d", n, keptGenerations)
	}
	if _, ok := c.lookup(key, "u", 98); !ok {
		t.Error("the generation before the last is not kept for the calls that run with it")
	}
	if get("other", 99) != "other99" {
		t.Error("an object that was deleted and created again got the entry of the old one")
	}
	c.forget(key)
	if _, ok := c.lookup(key, "other", 99); ok || len(c.entries) != 0 {
		t.Error("an object that is gone is still held")
	}
}
