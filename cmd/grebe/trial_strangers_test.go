package main

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	clusterv1 "grebe/api/grebe/cluster/v1"
	grebev1 "grebe/api/grebe/v1"
	"grebe/cluster/call"
	"grebe/cluster/mtls"
	"grebe/cluster/mtls/mtlstest"
	"grebe/cluster/peer"
)

// memberFiles writes a node's certificate, which is valid for this machine's address too.
func memberFiles(t *testing.T, a *mtlstest.Authority, node string) mtls.Files {
	t.Helper()
	dir := filepath.Join(t.TempDir(), node)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c := mtlstest.Template("trial", node)
	c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	f, err := a.Write(dir, c)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func memberAuthority(t *testing.T) *mtlstest.Authority {
	t.Helper()
	a, err := mtlstest.New()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func tlsSettings(f mtls.Files) []string {
	return []string{"cluster.tls.cert=" + f.Cert, "cluster.tls.key=" + f.Key, "cluster.tls.ca=" + f.CA}
}

// Processes without a certificate of the cluster's authority cannot join, read the feed, have a request answered or
// fetch a block. A process with one can do all of that.
func TestTrialStrangers(t *testing.T) {
	c := prepareTrial(t, 2)
	ours, theirs := memberAuthority(t), memberAuthority(t)
	for _, m := range c.nodes {
		m.set = tlsSettings(memberFiles(t, ours, m.id))
	}
	f := memberFiles(t, ours, "etcd")
	c.etcd = startEtcd(t, f.Cert, f.Key, f.CA)
	c.startAll()

	good, foreign := memberFiles(t, ours, "n9"), memberFiles(t, theirs, "n9")
	foreign.CA = good.CA // it knows whom it talks to, and is not one of them
	none := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "grebe"}}
	for _, s := range []struct {
		name string
		tls  *tls.Config // nil: none
		ok   bool
	}{
		{"a member", connectAs(t, good), true},
		{"one of another authority", connectAs(t, foreign), false},
		{"one without a certificate", none, false},
		{"one without TLS", nil, false},
	} {
		for what, err := range approach(t, c.nodes[0], s.tls) {
			if (err == nil) != s.ok {
				t.Errorf("%s: %s: %v", s.name, what, err)
			}
		}
	}
	for name, settings := range map[string][]string{"n7": nil, "n8": tlsSettings(foreign)} {
		c.intrude(name, settings)
	}
}

// connectAs returns how a holder of files connects.
func connectAs(t *testing.T, f mtls.Files) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "grebe"},
		Certificates: []tls.Certificate{pair}}
}

// approach does all that a member does with another one, and returns the errors.
func approach(t *testing.T, m *member, secure *tls.Config) map[string]error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	creds := insecure.NewCredentials()
	if secure != nil {
		creds = credentials.NewTLS(secure.Clone())
	}
	conn, err := grpc.NewClient("passthrough:///"+m.peer, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	out := map[string]error{}
	_, out["probe"] = clusterv1.NewPeerClient(conn).Probe(ctx, &clusterv1.ProbeRequest{})
	ranking := &grebev1.RankRequest{User: &grebev1.User{Id: "ana"}, Candidates: []*grebev1.Item{{Id: "i1"}, {Id: "i2"}}}
	out["rank"] = forward(ctx, m, secure, ranking)
	out["feed"] = subscribe(metadata.AppendToOutgoingContext(ctx, "grebe-model", "demo"), conn)

	o := peer.Options{Node: "n9"}
	if secure != nil {
		o.TLS = func(string) *tls.Config { return secure.Clone() }
	}
	blocks, err := peer.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	defer blocks.Close()
	blocks.SetPeers(map[string]string{m.id: m.peer})
	g := &peer.Get{Wants: []peer.Want{{Tokens: 1}}}
	err = blocks.Fetch(ctx, m.id, g, func(int, []byte, int64) ([][]byte, error) { return nil, nil })
	if err == nil && g.Wants[0].Status != peer.Miss {
		err = context.DeadlineExceeded
	}
	out["fetch"] = err
	return out
}

// forward asks as a member does that forwards a ranking.
func forward(ctx context.Context, m *member, secure *tls.Config, ranking *grebev1.RankRequest) error {
	c := call.NewClient(func(ctx context.Context) (net.Conn, error) {
		if secure == nil {
			return new(net.Dialer).DialContext(ctx, "tcp", m.peer)
		}
		return (&tls.Dialer{Config: secure.Clone()}).DialContext(ctx, "tcp", m.peer)
	})
	defer c.Close()
	a, err := c.Ask(ctx, &call.Request{Op: 1}, ranking)
	if err == nil && a.Failed {
		err = errors.New(string(a.Body))
	}
	return err
}

// subscribe follows a feed until the first message.
func subscribe(ctx context.Context, conn *grpc.ClientConn) error {
	s, err := clusterv1.NewFeedClient(conn).Subscribe(ctx)
	if err != nil {
		return err
	}
	if err := s.Send(&clusterv1.Ask{Number: 1, Subscribe: &clusterv1.Subscribe{
		ProtocolMin: 1, ProtocolMax: 1, Node: "n1"}}); err != nil {
		return err
	}
	_, err = s.Recv()
	return err
}

// intrude starts a process that wants to be a member and must not become one.
func (c *trial) intrude(id string, settings []string) {
	c.Helper()
	m := &member{id: id, listen: freeAddress(c), admin: freeAddress(c), peer: freeAddress(c), set: settings}
	m.advertise, m.log = m.peer, filepath.Join(c.dir, id+".log")
	c.launch(m)
	select {
	case <-m.exited: // it may refuse to start
	case <-time.After(long(10*time.Second, 3*time.Second)):
	}
	for _, n := range c.nodes {
		s, err := n.status()
		if err != nil {
			c.Error(err)
			continue
		}
		if len(s.Nodes) != len(c.nodes) {
			c.Errorf("%s sees %d nodes after %s came", n.id, len(s.Nodes), id)
		}
	}
	if s, err := m.status(); err == nil && len(s.Nodes) > 0 {
		c.Errorf("%s sees %d nodes of the cluster", id, len(s.Nodes))
	}
	c.end(m, 9)
}
