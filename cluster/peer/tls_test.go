package peer

import (
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"time"

	"grebe/cluster/mtls"
	"grebe/cluster/mtls/mtlstest"
)

func identityOf(t testing.TB, a *mtlstest.Authority, node string) *mtls.Identity {
	t.Helper()
	id, err := a.Identity(t.TempDir(), "shop", node)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// serveTLS starts a server, with TLS or without, and returns what makes a client fit for it.
func serveTLS(t testing.TB, secure bool, o ServerOptions) (*node, func(*Client)) {
	t.Helper()
	if !secure {
		return serve(t, o), func(*Client) {}
	}
	a, err := mtlstest.New()
	if err != nil {
		t.Fatal(err)
	}
	o.TLS, o.NodeOf = identityOf(t, a, "n1").Server(), mtls.NodeOf
	me := identityOf(t, a, "me")
	return serve(t, o), func(c *Client) { c.opt.TLS = me.Client }
}

// TestStrangersFetchNothing: without a certificate of the cluster's authority no block can be had (acceptance line 16).
func TestStrangersFetchNothing(t *testing.T) {
	ours, err := mtlstest.New()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := mtlstest.New()
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{}
	m.put(keyOf(1), &held{pieces: [][]byte{make([]byte, 1000)}})
	n := serve(t, ServerOptions{Holder: m, TLS: identityOf(t, ours, "n1").Server(), NodeOf: mtls.NodeOf})
	try := func(name, node string, config func(string) *tls.Config, want error, text string) {
		t.Helper()
		c, err := NewClient(Options{Node: node, TLS: config})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetPeers(map[string]string{"n1": n.addr})
		g := &Get{Space: space, Wants: wants(1)}
		err = c.Fetch(within(t, 5*time.Second), "n1", g, new(sink).place)
		if want == nil && text == "" {
			if err != nil || g.Wants[0].Status != Hit {
				t.Errorf("%s: %v, %v", name, err, g.Wants[0].Status)
			}
			return
		}
		if err == nil || g.Wants[0].Status != Late || want != nil && !errors.Is(err, want) ||
			!strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, %v; want %v …%s…", name, g.Wants[0].Status, err, want, text)
		}
	}
	me, stranger := identityOf(t, ours, "me"), identityOf(t, theirs, "me")
	try("a member", "me", me.Client, nil, "")
	try("no TLS", "me", nil, nil, "connect to node n1")
	try("no certificate", "me", func(string) *tls.Config { return &tls.Config{InsecureSkipVerify: true} }, nil,
		"certificate")
	try("another authority", "me", stranger.Client, mtls.ErrAuthority, "")
	try("another authority that believes all", "me", func(node string) *tls.Config {
		c := stranger.Client(node)
		c.VerifyConnection = nil
		return c
	}, nil, "certificate")
	try("another name", "n7", me.Client, nil, "node me says that it is n7")
	if s := n.Stats(); s.Answers[Hit] != 1 || s.Refused < 4 {
		t.Errorf("%+v", s)
	}
	secret := serve(t, ServerOptions{Holder: m, TLS: identityOf(t, theirs, "n1").Server(), NodeOf: mtls.NodeOf})
	c, err := NewClient(Options{Node: "me", TLS: me.Client})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetPeers(map[string]string{"n1": secret.addr})
	g := &Get{Space: space, Wants: wants(1)}
	if err := c.Fetch(within(t, 5*time.Second), "n1", g, new(sink).place); !errors.Is(err, mtls.ErrAuthority) ||
		g.Wants[0].Status == Hit {
		t.Errorf("a server of another authority: %v", err)
	}
}
