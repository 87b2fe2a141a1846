package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// loaded is the record of what a cluster has been given. A cluster that was
// made anew has another UID, so an old record cannot speak for it.
type loaded struct {
	ClusterUID string   `json:"clusterUID"`
	Images     []string `json:"images"`
}

// loadAll gives the running local cluster every archive it does not have yet.
// Should the kubelet have removed an image (it does when the disk is almost
// full), delete the record <out>/loaded.json and load again.
func loadAll(ctx context.Context, root, out string, todo []recipe, refs map[string]string) error {
	uid, err := output(ctx, root, filepath.Join(root, ".cluster", "bin", "kubectl"),
		"--kubeconfig", filepath.Join(root, ".cluster", "kubeconfig"), "--request-timeout=20s",
		"get", "namespace", "kube-system", "--output", "jsonpath={.metadata.uid}")
	if err != nil {
		return fmt.Errorf("-load needs the running local cluster (make cluster-up): %w", err)
	}
	record := filepath.Join(out, "loaded.json")
	var have loaded
	if data, err := os.ReadFile(record); err == nil {
		_ = json.Unmarshal(data, &have) // a damaged record: load everything again
	}
	if have.ClusterUID != string(uid) {
		have = loaded{ClusterUID: string(uid)}
	}
	for i, r := range todo {
		ref := refs[r.name]
		if slices.Contains(have.Images, ref) {
			fmt.Printf("  [%d/%d] %-55s loaded before\n", i+1, len(todo), ref)
			continue
		}
		start := time.Now()
		if _, err := output(ctx, filepath.Join(root, "hack", "cluster"), "go", "run", ".", "load", filepath.Join(out, r.name+".tar")); err != nil {
			return fmt.Errorf("load %s: %w", ref, err)
		}
		have.Images = append(have.Images, ref)
		data, err := json.Marshal(have)
		if err != nil {
			return err
		}
		if err := os.WriteFile(record, data, 0o644); err != nil {
			return err
		}
		fmt.Printf("  [%d/%d] %-55s loaded, %.1f s\n", i+1, len(todo), ref, time.Since(start).Seconds())
	}
	return nil
}
