package doctor

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"grebe/cluster/coord/embedded"
	"grebe/cluster/coord/etcd"
	"grebe/cluster/coord/kube/kubetest"
	"grebe/cluster/member"
	"grebe/cluster/mtls"
	"grebe/cluster/mtls/mtlstest"
	"grebe/internal/config"
)

// seatAt is a seat on addresses that are free.
func seatAt(t *testing.T, coordinator string) *seat {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	addr := ln.Addr().String()
	return &seat{name: "shop", node: "n1", coordinator: coordinator, etcd: "127.0.0.1:0", listen: addr, advertise: addr}
}

func examined(s *seat) *Report {
	r := &Report{}
	s.examine(r)
	return r
}

// wantFinding checks a finding. All but the good ones carry a remedy.
func wantFinding(t *testing.T, r *Report, check string, status Status, says string) {
	t.Helper()
	for _, f := range r.Findings {
		if f.Check == check && f.Status == status && strings.Contains(f.Detail, says) {
			if (f.Remedy != "") != (status == Warn || status == Fail) {
				t.Errorf("%+v: wrong remedy", f)
			}
			return
		}
	}
	t.Errorf("no %s of %s with %q in %+v", status, check, says, r.Findings)
}

func TestClusterNeighbours(t *testing.T) {
	server, err := embedded.Start(context.Background(), embedded.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	s := seatAt(t, "etcd://"+server.Addr())
	r := examined(s)
	wantFinding(t, r, "coordinator", OK, "0 nodes")
	wantFinding(t, r, "cluster.listen", OK, s.listen)
	wantFinding(t, r, "cluster.advertise", Info, "this machine alone")
	if r.Failed() {
		t.Errorf("failed: %+v", r.Findings)
	}

	c, err := etcd.Open(etcd.Options{Endpoints: []string{server.Addr()}, Root: "/grebe/v1/shop/"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, n := range []member.Record{
		{ID: "n1", Protocol: member.Protocol{Min: 1, Max: 2},
			Models: []member.Model{{Name: "shop", Digest: "a", Format: "1", Numerics: "amx"}}},
		{ID: "n2", Keys: "k", Protocol: member.Protocol{Min: 2, Max: 3},
			Models: []member.Model{{Name: "shop", Digest: "b", Format: "1", Numerics: "amx"}}},
		{ID: "n3", Protocol: member.Protocol{Min: 3, Max: 4},
			Models: []member.Model{{Name: "shop", Digest: "a", Format: "1", Numerics: "avx2"}}},
	} {
		n.Boot, n.Peer, n.Roles = "b", "10.0.0.9:7070", []string{member.Node}
		data, err := n.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Swap(context.Background(), "nodes/"+n.ID, data, 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	r = examined(s)
	wantFinding(t, r, "coordinator", OK, "3 nodes")
	wantFinding(t, r, "cluster.node", Fail, "10.0.0.9:7070")
	wantFinding(t, r, "versions", Fail, "n1 and n3")
	wantFinding(t, r, "versions", Fail, "n3 versions 3 to 4: it cannot join")
	wantFinding(t, r, "versions", Warn, "model shop: n1 n3 | n2")
	wantFinding(t, r, "versions", Info, "n1 n2 | n3")
	wantFinding(t, r, "auth.keys", Warn, "n1 n3 | n2")
}

func TestClusterUnreachable(t *testing.T) {
	s := seatAt(t, "etcd://127.0.0.1:1")
	r := examined(s)
	wantFinding(t, r, "coordinator", Fail, "127.0.0.1:1")
	if f := find(t, r, "coordinator"); !strings.Contains(f.Remedy, "or start the node with coordinator: embedded first") {
		t.Errorf("%+v: the remedy leaves out the node whose etcd it is", f)
	}
	s.coordinator = "embedded"
	s.advertise = "127.0.0.1:1"
	r = examined(s)
	wantFinding(t, r, "cluster.advertise", Fail, "127.0.0.1:1")
	wantFinding(t, r, "cluster.etcd", OK, "free")

	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	s.listen, s.etcd = other.Addr().String(), other.Addr().String()
	r = examined(s)
	wantFinding(t, r, "cluster.listen", Fail, "in use")
	wantFinding(t, r, "cluster.etcd", Fail, "in use")
	go func() {
		for {
			conn, err := other.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(strings.Repeat("something else ", 10)))
			conn.Close()
		}
	}()
	s.listen, s.advertise = "127.0.0.1:0", other.Addr().String()
	wantFinding(t, examined(s), "cluster.advertise", Fail, "another process answers")
}

func TestClusterCertificates(t *testing.T) {
	ours, err := mtlstest.New()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := mtlstest.New()
	if err != nil {
		t.Fatal(err)
	}
	write := func(a *mtlstest.Authority, node string, from, to time.Duration) mtls.Files {
		c := mtlstest.Template("shop", node)
		c.NotBefore, c.NotAfter = time.Now().Add(from), time.Now().Add(to)
		f, err := a.Write(t.TempDir(), c)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	const day = 24 * time.Hour
	foreign := write(theirs, "n1", -day, day)
	foreign.CA = write(ours, "n1", -day, day).CA
	for name, c := range map[string]struct {
		files  mtls.Files
		status Status
		says   string
	}{
		"good":    {write(ours, "n1", -day, 90*day), OK, "grebe://shop/n1"},
		"ends":    {write(ours, "n1", -day, day), Warn, "expires at"},
		"expired": {write(ours, "n1", -2*day, -day), Fail, "expired"},
		"other":   {write(ours, "n2", -day, day), Fail, `of node "n2"`},
		"foreign": {foreign, Fail, "authority"},
		"absent":  {mtls.Files{Cert: filepath.Join(t.TempDir(), "absent.pem")}, Fail, "absent.pem"},
	} {
		t.Run(name, func(t *testing.T) {
			s := seatAt(t, "embedded")
			s.files, s.secure = c.files, true
			r := examined(s)
			wantFinding(t, r, "cluster.tls", c.status, c.says)
			if r.Failed() != (c.status == Fail) {
				t.Errorf("failed is %v", r.Failed())
			}
		})
	}
}

// The section is read with the defaults that a server would use.
func TestClusterSection(t *testing.T) {
	r := &Report{}
	examineCluster(r, &config.Cluster{})
	if len(r.Findings) > 0 {
		t.Errorf("no cluster: %+v", r.Findings)
	}
	k := config.Cluster{Name: "shop", Coordinator: "embedded", Etcd: "127.0.0.1:0", Listen: "127.0.0.1:0",
		Advertise: "127.0.0.1:2"}
	examineCluster(r, &k)
	wantFinding(t, r, "cluster.advertise", Fail, "127.0.0.1:2")
	k.TLS.Cert = "absent.pem"
	examineCluster(r, &k)
	wantFinding(t, r, "cluster.tls", Fail, "absent.pem")
}

// On Kubernetes the doctor tells who is registered, and which right is missing.
func TestClusterOnKubernetes(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // the test itself may run in a pod
	server := kubetest.New()
	s := seatAt(t, server.Listen(t, "shop"))
	s.kubernetes = true
	r := examined(s)
	wantFinding(t, r, "coordinator", OK, "0 nodes")
	wantFinding(t, r, "coordinator.rights", OK, "")

	all := kubetest.Rules()
	server.Allow(all[0], kubetest.Rule{Group: all[1].Group, Resource: all[1].Resource,
		Verbs: []string{"list", "create", "delete"}})
	wantFinding(t, examined(s), "coordinator.rights", Fail, "add the verb patch for leases.coordination.k8s.io")
	server.Allow(all[1])
	wantFinding(t, examined(s), "coordinator", Fail, "no right to list configmaps in namespace shop")
	server.Admit("another token")
	wantFinding(t, examined(s), "coordinator", Fail, "401")
	s.coordinator = "kubernetes://127.0.0.1:1/shop"
	wantFinding(t, examined(s), "coordinator", Fail, "token")
	s.coordinator = "kubernetes"
	wantFinding(t, examined(s), "coordinator", Fail, "no pod")
}
