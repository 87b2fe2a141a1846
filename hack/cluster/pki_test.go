package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"
)

func TestPKI(t *testing.T) {
	l := newLayout(t.TempDir(), "")
	if err := makePKI(l); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(l.pki("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	for _, c := range certs {
		pair, err := tls.LoadX509KeyPair(l.pki(c.file+".crt"), l.pki(c.file+".key"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Errorf("%s is no client certificate: %v", c.file, err)
		}
		for _, name := range append(c.dns, c.ips...) {
			_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: name})
			if err != nil {
				t.Errorf("%s is no server certificate for %s: %v", c.file, name, err)
			}
		}
		if pair.Leaf.Subject.CommonName != c.name {
			t.Errorf("%s names %s, want %s", c.file, pair.Leaf.Subject.CommonName, c.name)
		}
	}
	if err := makePKI(l); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(l.pki("ca.crt")); err != nil || !bytes.Equal(again, ca) {
		t.Errorf("a second up makes a new CA (%v)", err)
	}
}
