package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// apiClient speaks to this cluster's API server as admin. It knows nothing of
// the environment's HTTP proxies.
func apiClient(l layout) (*http.Client, error) {
	pair, err := tls.LoadX509KeyPair(l.pki("admin.crt"), l.pki("admin.key"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(l.pki("ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s holds no certificate", l.pki("ca.crt"))
	}
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, MinVersion: tls.VersionTLS12}}}, nil
}

// get reads one URL, at most 4 MiB, into out unless that is nil.
func get(ctx context.Context, client *http.Client, url string, out any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // only read
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s: %s", url, response.Status, tail(body, 3))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(body, out)
}

// An object is what of a Node or Pod is looked at here.
type object struct {
	Status struct {
		Phase      string
		Conditions []struct{ Type, Status, Reason, Message string }
		NodeInfo   struct{ KubeletVersion string }
	}
}

// ready returns nil when the condition Ready is True, else an error that says why not.
func (o object) ready() error {
	for _, c := range o.Status.Conditions {
		if c.Type == "Ready" {
			if c.Status == "True" {
				return nil
			}
			return fmt.Errorf("condition Ready is %s: %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return fmt.Errorf("no condition Ready yet (phase %q)", o.Status.Phase)
}

const nodeURL = apiServer + "/api/v1/nodes/" + nodeName
