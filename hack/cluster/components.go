package main

import "fmt"

// A component is one long-running process of the cluster.
type component struct {
	// name is the program's, the log's, and how the process is found again.
	name string
	args []string
	env  []string
	// ports are those it listens on, on one address each.
	ports []int
}

// components returns all of them in the order in which they are started.
func components(l layout) []component {
	kubeconfigOf := func(certificate string) string { return "--kubeconfig=" + l.config(certificate+".kubeconfig") }
	return []component{
		{name: "etcd", ports: []int{2379, 2380}, args: []string{
			"--name=" + nodeName,
			"--data-dir=" + l.path("etcd"),
			"--listen-client-urls=http://127.0.0.1:2379",
			"--advertise-client-urls=http://127.0.0.1:2379",
			"--listen-peer-urls=http://127.0.0.1:2380",
			// A cluster that can be made again in seconds need not survive a power cut.
			"--unsafe-no-fsync",
			"--logger=zap", "--log-level=warn",
		}},
		{name: "containerd", args: []string{"--config=" + l.config("containerd.toml")}},
		{name: "kube-apiserver", ports: []int{apiPort}, args: []string{
			"--etcd-servers=http://127.0.0.1:2379",
			"--bind-address=" + nodeIP,
			"--advertise-address=" + nodeIP,
			fmt.Sprintf("--secure-port=%d", apiPort),
			"--tls-cert-file=" + l.pki("apiserver.crt"),
			"--tls-private-key-file=" + l.pki("apiserver.key"),
			"--cert-dir=" + l.pki(""),
			"--client-ca-file=" + l.pki("ca.crt"),
			"--service-account-key-file=" + l.pki("sa.pub"),
			"--service-account-signing-key-file=" + l.pki("sa.key"),
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction",
			"--service-cluster-ip-range=" + serviceCIDR,
			"--kubelet-client-certificate=" + l.pki("apiserver-kubelet.crt"),
			"--kubelet-client-key=" + l.pki("apiserver-kubelet.key"),
			"--kubelet-certificate-authority=" + l.pki("ca.crt"),
			"--kubelet-preferred-address-types=InternalIP",
			"--allow-privileged=true",
			"--profiling=false",
		}},
		{name: "kube-controller-manager", ports: []int{10257}, args: []string{
			kubeconfigOf("controller-manager"),
			"--bind-address=127.0.0.1",
			"--cert-dir=" + l.pki(""),
			"--service-account-private-key-file=" + l.pki("sa.key"),
			"--root-ca-file=" + l.pki("ca.crt"),
			"--cluster-signing-cert-file=" + l.pki("ca.crt"),
			"--cluster-signing-key-file=" + l.pki("ca.key"),
			"--use-service-account-credentials=true",
			"--flex-volume-plugin-dir=" + l.path("volume-plugins"), // made, though nothing is in it
			"--leader-elect=false",
			// The default of 20 requests a second is below what one node can do.
			"--kube-api-qps=200", "--kube-api-burst=400",
		}},
		{name: "kube-scheduler", ports: []int{10259}, args: []string{
			kubeconfigOf("scheduler"),
			"--bind-address=127.0.0.1",
			"--cert-dir=" + l.pki(""),
			"--leader-elect=false",
		}},
		{name: "kubelet", ports: []int{10250, 10248}, args: []string{
			kubeconfigOf("kubelet"),
			"--config=" + l.config("kubelet.yaml"),
			"--root-dir=" + l.kubeletRoot(),
			"--cert-dir=" + l.pki(""),
			"--hostname-override=" + nodeName,
			"--node-ip=" + nodeIP,
		}},
		{name: "kube-proxy", ports: []int{10256, 10249}, args: []string{
			"--config=" + l.config("kube-proxy.yaml"),
			"--hostname-override=" + nodeName,
		}},
		// Only its firewall: it enforces NetworkPolicies.
		{name: "kube-router", env: []string{"NODE_NAME=" + nodeName}, args: []string{
			kubeconfigOf("kube-router"),
			"--run-firewall=true", "--run-router=false", "--run-service-proxy=false",
			"--service-cluster-ip-range=" + serviceCIDR,
			"--metrics-port=0", "--health-port=0",
		}},
	}
}
