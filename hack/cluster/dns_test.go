package main

import (
	"os"
	"strings"
	"testing"
)

// The manifest is no template: what it repeats has to be the same.
func TestDNSManifestFitsTheCluster(t *testing.T) {
	content, err := os.ReadFile("manifests/dns.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"clusterIP: " + dnsIP + "\n", "image: " + corednsImage + "\n", "kubernetes " + dnsDomain + " "} {
		if !strings.Contains(string(content), want) {
			t.Errorf("manifests/dns.yaml lacks %q", want)
		}
	}
}
