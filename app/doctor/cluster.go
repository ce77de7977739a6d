package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"grebe/cluster/coord"
	"grebe/cluster/coord/etcd"
	"grebe/cluster/coord/kube"
	"grebe/cluster/member"
	"grebe/cluster/mtls"
	"grebe/cluster/protocol"
	"grebe/internal/config"
	"grebe/internal/human"
)

// seat is a node's place in a cluster.
type seat struct {
	name, node  string
	coordinator string // as in the configuration
	kubernetes  bool   // that is Kubernetes
	etcd        string // host:port of the embedded etcd
	listen      string // host:port for other nodes
	advertise   string // host:port under which they reach it
	files       mtls.Files
	secure      bool // connections to nodes and to etcd use the files
}

// examineCluster checks the cluster section of a configuration.
func examineCluster(r *Report, k *config.Cluster) {
	if k.Name == "" {
		return
	}
	s := seat{name: k.Name, node: k.Node, coordinator: k.Coordinator, kubernetes: k.OnKubernetes(), etcd: k.Etcd,
		listen: k.Listen, advertise: k.Advertise,
		files: mtls.Files{Cert: k.TLS.Cert, Key: k.TLS.Key, CA: k.TLS.CA}, secure: k.TLS.Cert != ""}
	host, err := os.Hostname()
	if s.node == "" && err != nil {
		r.add("cluster.node", Fail, "set cluster.node", "this host's name is unknown: %v", err)
		return
	}
	s.node = cmp.Or(s.node, host)
	if s.advertise == "" {
		s.advertise = s.listen
		at, port, _ := net.SplitHostPort(s.listen) // it was validated
		if ip := net.ParseIP(at); at == "" || ip != nil && ip.IsUnspecified() {
			s.advertise = net.JoinHostPort(cmp.Or(host, s.node), port)
		}
	}
	s.examine(r)
	examineUsers(r, k)
}

// renewWithin is the time before the end of a certificate in which it should be replaced.
const renewWithin = 30 * 24 * time.Hour

// examine checks whether a process could join its cluster.
func (s *seat) examine(r *Report) {
	if s.secure && !s.certificates(r) {
		return // nothing else can work
	}
	s.reachable(r)
	if s.coordinator == "embedded" {
		free(r, "cluster.etcd", s.etcd, Fail)
		return
	}
	c, remedy, err := s.open()
	if err != nil {
		r.add("coordinator", Fail, "correct cluster.coordinator", "%s: %v", s.coordinator, err)
		return
	}
	defer c.Close()
	records, err := registered(c)
	if err != nil {
		if errors.As(err, new(*kube.Denied)) {
			remedy = "give the service account the Role in docs/how-to/kubernetes-coordinator.md"
		}
		r.add("coordinator", Fail, remedy, "%s: %v", s.coordinator, err)
		return
	}
	if k, ok := c.(*kube.Client); ok && !rights(r, k) {
		return
	}
	r.add("coordinator", OK, "", "%s answers; %s registered in cluster %s", s.coordinator,
		human.Are(len(records), "node"), s.name)
	s.neighbours(r, records)
}

// certificates checks the node's certificate, and reports whether it can be used.
func (s *seat) certificates(r *Report) bool {
	const check = "cluster.tls"
	_, err := mtls.Load(s.files, s.name, s.node)
	switch {
	case errors.Is(err, mtls.ErrExpired):
		r.add(check, Fail, "issue a new certificate, or correct this machine's clock", "%v", err)
	case errors.Is(err, mtls.ErrAuthority):
		r.add(check, Fail, "sign the certificate with the authority in cluster.tls.ca, for servers and for clients",
			"%v", err)
	case errors.Is(err, mtls.ErrNode):
		r.add(check, Fail, fmt.Sprintf("issue a certificate with the URI grebe://%s/%s among its subject alternative "+
			"names: see docs/how-to/cluster-certificates.md",
			s.name, s.node), "%v", err)
	case err != nil:
		r.add(check, Fail, "correct the paths in cluster.tls; each names a PEM file", "%v", err)
	default:
		if end := expiry(s.files.Cert); time.Until(end) < renewWithin {
			r.add(check, Warn, "issue a new certificate; SIGHUP makes a running node use it",
				"the certificate of %s expires at %s",
				s.node, end.UTC().Format(time.RFC3339))
		} else {
			r.add(check, OK, "", "grebe://%s/%s, valid until %s", s.name, s.node, end.UTC().Format(time.DateOnly))
		}
	}
	return err == nil
}

// expiry returns the end of the first certificate of a file, or the zero time.
func expiry(file string) time.Time {
	data, err := os.ReadFile(file)
	if err != nil {
		return time.Time{}
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return time.Time{}
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}
	}
	return c.NotAfter
}

// reachable listens on the node's address and calls itself under the one that it tells others.
func (s *seat) reachable(r *Report) {
	if !free(r, "cluster.listen", s.listen, Fail) {
		return
	}
	ln, err := net.Listen("tcp", s.listen)
	if err != nil {
		return // another process was faster
	}
	defer ln.Close()
	token := fmt.Sprintf("grebe doctor %d %d\n", os.Getpid(), time.Now().UnixNano())
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return // closed
			}
			_, _ = io.WriteString(conn, token)
			conn.Close()
		}
	}()
	if err := hears(s.advertise, token); err != nil {
		r.add("cluster.advertise", Fail, "set cluster.advertise to a host:port of this machine that the other nodes reach",
			"this machine does not reach itself under %s: %v", s.advertise, err)
		return
	}
	host, _, _ := net.SplitHostPort(s.advertise) // it was dialled
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() || host == "localhost" {
		r.add("cluster.advertise", Info, "", "%s is reached from this machine alone", s.advertise)
		return
	}
	r.add("cluster.advertise", OK, "", "%s leads to this machine", s.advertise)
}

// hears connects to an address and expects a text.
func hears(addr, want string) error {
	conn, err := net.DialTimeout("tcp", addr, 2*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got) != want {
		return errors.New("another process answers")
	}
	return nil
}

// open returns a client of the coordinator, and what to do if that does not answer.
func (s *seat) open() (coord.Coordinator, string, error) {
	if s.kubernetes {
		o, err := kube.Parse(s.coordinator, s.name)
		if err != nil {
			return nil, "", err
		}
		c, err := kube.Open(o)
		return c, "open the API server's port to this machine, check the token and the authority, or correct " +
			"cluster.coordinator; " +
			"nodes that run go on without it, but none can join", err
	}
	endpoints, err := etcd.ParseURL(s.coordinator)
	if err != nil {
		return nil, "", err
	}
	var client *tls.Config
	if s.secure {
		if client, err = mtls.Plain(s.files); err != nil {
			return nil, "", err
		}
	}
	c, err := etcd.Open(etcd.Options{Endpoints: endpoints, Root: "/grebe/v1/" + s.name + "/", TLS: client})
	return c, "start etcd there, or start the node with coordinator: embedded first; open its port to this " +
		"machine, or correct cluster.coordinator; " +
		"nodes that run go on without it, but none can join", err
}

// rights checks what the service account may do. It reports whether that is enough.
func rights(r *Report, c *kube.Client) bool {
	missing, err := c.Missing(context.Background())
	if err != nil {
		r.add("coordinator.rights", Warn, "compare the service account's Role with that in "+
			"docs/how-to/kubernetes-coordinator.md",
			"the API server does not say what this service account may do: %v", err)
		return true
	}
	for _, m := range missing {
		r.add("coordinator.rights", Fail, "give the service account the Role in docs/how-to/kubernetes-coordinator.md",
			"%v", m)
	}
	if len(missing) == 0 {
		r.add("coordinator.rights", OK, "", "the service account may do all that a member does")
	}
	return len(missing) == 0
}

// registered returns what the nodes of the cluster publish.
func registered(c coord.Coordinator) ([]member.Record, error) {
	entries, err := c.List(context.Background(), "nodes/")
	if err != nil {
		if _, ours := c.(*etcd.Client); ours && errors.Is(err, coord.ErrUnavailable) {
			err = errors.New("no answer within 2 s")
		}
		return nil, err
	}
	var out []member.Record
	for _, e := range entries {
		if rec, err := member.Decode(e.Data); err == nil { // else it is of a later release
			out = append(out, rec)
		}
	}
	return out, nil
}

// neighbours looks for nodes that do not fit together.
func (s *seat) neighbours(r *Report, records []member.Record) {
	digests, classes, keys := map[string]map[string][]string{}, map[string][]string{}, map[string][]string{}
	for i, a := range records {
		if a.ID == s.node && a.Peer != s.advertise {
			r.add("cluster.node", Fail, "give every process its own cluster.node",
				"%s is registered already, from %s: the two would replace each other", s.node, a.Peer)
		}
		if own := (member.Protocol{Min: protocol.Min, Max: protocol.Max}); a.ID != s.node {
			if _, ok := own.Common(a.Protocol); !ok {
				r.add("versions", Fail, "upgrade one release at a time",
					"this build speaks %v of the protocol between members and %s %v: it cannot join",
					own, a.ID, a.Protocol)
			}
		}
		for _, b := range records[:i] {
			if _, ok := a.Protocol.Common(b.Protocol); !ok {
				r.add("versions", Fail, "upgrade one release at a time", "%s and %s speak no common version of the protocol", b.ID,
					a.ID)
			}
		}
		keys[a.Keys] = append(keys[a.Keys], a.ID)
		seen := map[string]bool{}
		for _, m := range a.Models {
			if digests[m.Name] == nil {
				digests[m.Name] = map[string][]string{}
			}
			version := m.Digest + " " + m.Format
			digests[m.Name][version] = append(digests[m.Name][version], a.ID)
			if !seen[m.Numerics] {
				seen[m.Numerics] = true
				classes[m.Numerics] = append(classes[m.Numerics], a.ID)
			}
		}
	}
	for _, model := range slices.Sorted(maps.Keys(digests)) {
		if by := digests[model]; len(by) > 1 {
			r.add("versions", Warn, "reload the model on the nodes that are behind; until then they share no KV of it",
				"nodes have different checkpoints of model %s: %s", model, groups(by))
		}
	}
	if len(keys) > 1 {
		r.add("auth.keys", Warn, "give all nodes the same keys with the same limits, and send SIGHUP",
			"nodes have different clients' keys: %s", groups(keys))
	}
	if len(classes) > 1 {
		r.add("versions", Info, "", "nodes compute with different last bits, so these groups share no KV: %s",
			groups(classes))
	}
}

// groups lists the nodes of each group.
func groups(by map[string][]string) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, strings.Join(by[key], " "))
	}
	return strings.Join(parts, " | ")
}
