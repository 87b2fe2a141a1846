package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"
)

// resolve asks the cluster's DNS, as a pod does, for the address of the API
// server. It returns nil when the answer is right: then kube-proxy has the
// Service, and CoreDNS runs and knows the Services.
func resolve(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, net.JoinHostPort(dnsIP, "53"))
	}}
	name := "kubernetes.default.svc." + dnsDomain + "."
	addresses, err := resolver.LookupHost(ctx, name)
	if err != nil {
		return err
	}
	if !slices.Equal(addresses, []string{serviceIP}) {
		return fmt.Errorf("%s is %v, not %s", name, addresses, serviceIP)
	}
	return nil
}
