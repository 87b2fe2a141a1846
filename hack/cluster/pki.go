package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// A cert is one certificate of the cluster: whom it names, and for servers
// under which names and addresses they are reached.
type cert struct {
	file  string // without .crt and .key
	name  string // CN: the user
	group string // O: the group
	dns   []string
	ips   []string
}

// certs are all certificates signed by the cluster's CA. The users and groups
// are those Kubernetes' own roles are bound to.
var certs = []cert{
	{file: "apiserver", name: "kube-apiserver",
		dns: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		ips: []string{"127.0.0.1", serviceIP, nodeIP}},
	{file: "apiserver-kubelet", name: "kube-apiserver-kubelet-client", group: "system:masters"},
	{file: "kubelet-server", name: "system:node:" + nodeName, group: "system:nodes", dns: []string{nodeName}, ips: []string{nodeIP}},
	{file: "kubelet", name: "system:node:" + nodeName, group: "system:nodes"},
	{file: "controller-manager", name: "system:kube-controller-manager"},
	{file: "scheduler", name: "system:kube-scheduler"},
	{file: "kube-proxy", name: "system:kube-proxy"},
	{file: "kube-router", name: "callgate:kube-router"},
	{file: "admin", name: "admin", group: "system:masters"},
}

// certLife is how long a cluster can be kept; nothing renews certificates.
const certLife = 365 * 24 * time.Hour

// makePKI writes the CA, every certificate and the service-account key into the
// folder pki of l unless it is there already.
func makePKI(l layout) error {
	// The admin certificate is written last: it stands for all of them.
	if _, err := os.Stat(l.pki("admin.crt")); err == nil {
		return nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(l.path("pki"), 0o700); err != nil {
		return err
	}
	caKey, err := writeKey(l.pki("ca.key"))
	if err != nil {
		return err
	}
	ca := newCert(pkix.Name{CommonName: "callgate-cluster-ca"})
	ca.IsCA, ca.BasicConstraintsValid = true, true
	ca.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	if err := writeCert(l.pki("ca.crt"), ca, ca, caKey, caKey); err != nil {
		return err
	}
	account, err := writeKey(l.pki("sa.key"))
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&account.PublicKey)
	if err != nil {
		return err
	}
	if err := writePEM(l.pki("sa.pub"), "PUBLIC KEY", public); err != nil {
		return err
	}
	for _, c := range certs {
		key, err := writeKey(l.pki(c.file + ".key"))
		if err != nil {
			return err
		}
		if err := writeCert(l.pki(c.file+".crt"), c.template(), ca, key, caKey); err != nil {
			return err
		}
	}
	return nil
}

func newCert(subject pkix.Name) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil { // crypto/rand ends the program itself rather than return an error
		serial = big.NewInt(time.Now().UnixNano())
	}
	now := time.Now()
	return &x509.Certificate{SerialNumber: serial, Subject: subject,
		// An hour back, so that a clock set back a little does no harm.
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certLife)}
}

func (c cert) template() *x509.Certificate {
	subject := pkix.Name{CommonName: c.name}
	if c.group != "" {
		subject.Organization = []string{c.group}
	}
	t := newCert(subject)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(c.ips) > 0 {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	t.DNSNames = c.dns
	for _, ip := range c.ips {
		t.IPAddresses = append(t.IPAddresses, net.ParseIP(ip))
	}
	return t
}

func writeKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writePEM(path, "EC PRIVATE KEY", der)
}

func writeCert(path string, c, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", path, err)
	}
	return writePEM(path, "CERTIFICATE", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
