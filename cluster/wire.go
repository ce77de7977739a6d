package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/cluster/call"
	"grebe/cluster/feed"
	feedwire "grebe/cluster/feed/wire"
)

// wire is how other members reach this process: one address for gRPC (feeds, the catalog, probes), forwarded requests
// and blocks of KV.
type wire struct {
	c    *Cluster
	grpc *grpc.Server
	call *call.Server
	run  sync.WaitGroup

	mu     sync.Mutex
	feeds  map[string]*feedwire.Server // by model; empty until there is a secret
	conns  map[net.Conn]struct{}       // whose first bytes are awaited
	closed bool
}

// maxMessage bounds a message between members.
const maxMessage = call.MaxMessage

// reconnect has a node that comes back used within about a second.
var reconnect = grpc.ConnectParams{
	Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: .2,
		MaxDelay: time.Second},
	MinConnectTimeout: time.Second,
}

func newWire(c *Cluster) *wire {
	w := &wire{c: c, feeds: map[string]*feedwire.Server{}, conns: map[net.Conn]struct{}{}}
	w.grpc = grpc.NewServer(
		grpc.Creds(arrived{}), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.InitialWindowSize(1<<20), grpc.InitialConnWindowSize(1<<20),
	)
	clusterv1.RegisterPeerServer(w.grpc, probes{c: c})
	clusterv1.RegisterFeedServer(w.grpc, feeds{w: w})
	w.call = call.NewServer(c.incoming)
	return w
}

// serve accepts connections.
func (w *wire) serve() {
	addr := w.c.cfg.Listener.Addr()
	in, blocks := newInbox(addr), newInbox(addr)
	w.run.Go(func() { _ = w.grpc.Serve(in) }) // ends when in is closed
	w.run.Go(func() { w.c.blocks.serve(w.c.ctx, blocks) })
	w.run.Go(func() {
		defer in.Close()
		defer blocks.Close()
		for {
			conn, err := w.c.cfg.Listener.Accept()
			if err != nil {
				if errors.Is(err, net.ErrClosed) {
					return
				}
				w.c.cfg.Log.Warn("cannot accept a member", "error", err)
				time.Sleep(10 * time.Millisecond) // such as too many open files
				continue
			}
			if w.begin(conn) {
				w.run.Go(func() { w.sort(conn, in, blocks) })
			}
		}
	})
}

// greetWithin bounds the time until a connection says what it is for.
const greetWithin = 5 * time.Second

// mostGreeting bounds the connections that have not said what they are for.
const mostGreeting = 256

func (w *wire) begin(conn net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.conns) >= mostGreeting {
		conn.Close()
		return false
	}
	w.conns[conn] = struct{}{}
	return true
}

// preface begins every connection of gRPC.
var preface = []byte("PRI ")

// sort gives a connection to gRPC, the requests or the blocks. With TLS, the other side has shown that it is a member
// by then.
func (w *wire) sort(raw net.Conn, in, blocks *inbox) {
	conn, err := w.greet(raw)
	w.mu.Lock()
	delete(w.conns, raw)
	closed := w.closed
	w.mu.Unlock()
	switch {
	case err != nil || closed:
		if err != nil && !errors.Is(err, io.EOF) {
			w.c.cfg.Log.Debug("a connection was refused", "from", raw.RemoteAddr(), "error", err)
		}
		raw.Close()
	case bytes.Equal(conn.first, preface):
		in.add(conn)
	case string(conn.first) == call.Preface:
		conn.left = nil
		if err := w.call.Serve(conn); err != nil {
			w.c.cfg.Log.Debug("a connection for requests ended", "from", raw.RemoteAddr(), "error", err)
		}
	default:
		blocks.add(conn)
	}
}

// greet secures a connection and reads its first bytes.
func (w *wire) greet(raw net.Conn) (*opened, error) {
	if err := raw.SetDeadline(time.Now().Add(greetWithin)); err != nil {
		return nil, err
	}
	o := &opened{Conn: raw}
	if id := w.c.cfg.Identity; id != nil {
		secure := id.Server()
		secure.NextProtos = []string{"h2", "grebe"}
		t := tls.Server(raw, secure)
		ctx, cancel := context.WithTimeout(w.c.ctx, greetWithin)
		defer cancel()
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		o.Conn, o.secure = t, true
		o.state = t.ConnectionState()
	}
	first := make([]byte, len(preface))
	if _, err := io.ReadFull(o.Conn, first); err != nil {
		return nil, err
	}
	o.first, o.left = first, first
	return o, raw.SetDeadline(time.Time{})
}

// open serves feeds once there is a secret.
func (w *wire) open(s *feed.Secret) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	for _, f := range w.c.groups {
		w.feeds[f.model.Name] = feedwire.NewServer(feedwire.ServerConfig{
			Publisher: feed.NewPublisher(w.c.cfg.Node, *s, f, f.load), Clock: w.c.now})
	}
}

func (w *wire) close() {
	w.mu.Lock()
	w.closed = true
	for conn := range w.conns {
		conn.Close()
	}
	feeds := w.feeds
	w.feeds = nil
	w.mu.Unlock()
	w.c.cfg.Listener.Close()
	for _, f := range feeds {
		f.Close()
	}
	w.call.Close(stopWithin)
	late := time.AfterFunc(stopWithin, w.grpc.Stop)
	w.grpc.GracefulStop()
	late.Stop()
	w.run.Wait()
}

// stopWithin bounds the time for forwarded requests that are under way when this process stops.
const stopWithin = 5 * time.Second

// dial connects to a member. The connection is made when it is used first.
func (w *wire) dial(node, addr string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr, append(w.options(node),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(1<<20), grpc.WithConnectParams(reconnect))...)
	if err != nil {
		return nil, fmt.Errorf("cluster: connect to %s: %w", node, err)
	}
	return conn, nil
}

// connects returns how to connect to a member without gRPC.
func (w *wire) connects(node, addr string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil || w.c.cfg.Identity == nil {
			return raw, err
		}
		secured := tls.Client(raw, w.c.cfg.Identity.Client(node))
		if err := secured.HandshakeContext(ctx); err != nil {
			raw.Close()
			return nil, err
		}
		return secured, nil
	}
}

// options are those of every connection of gRPC to a member.
func (w *wire) options(node string) []grpc.DialOption {
	creds := insecure.NewCredentials()
	if id := w.c.cfg.Identity; id != nil {
		creds = credentials.NewTLS(id.Client(node))
	}
	return []grpc.DialOption{grpc.WithTransportCredentials(creds)}
}

// probes answers members that ask who this is.
type probes struct {
	clusterv1.UnimplementedPeerServer
	c *Cluster
}

func (p probes) Probe(context.Context, *clusterv1.ProbeRequest) (*clusterv1.ProbeResponse, error) {
	return &clusterv1.ProbeResponse{Node: p.c.cfg.Node, Boot: p.c.boot}, nil
}

// modelHeader names the model whose feed is wanted.
const modelHeader = "grebe-model"

// feeds gives a follower the feed of the model that it names.
type feeds struct {
	clusterv1.UnimplementedFeedServer
	w *wire
}

func (f feeds) Subscribe(stream clusterv1.Feed_SubscribeServer) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	name := md.Get(modelHeader)
	if len(name) != 1 {
		return status.Error(codes.InvalidArgument, "feed: the model is missing")
	}
	select { // its disk may have KV of users who were deleted while this process was away
	case <-f.w.c.readied:
	case <-f.w.c.ctx.Done():
		return status.Error(codes.Unavailable, "feed: this process stops")
	case <-stream.Context().Done():
		return status.FromContextError(stream.Context().Err()).Err()
	}
	f.w.mu.Lock()
	s := f.w.feeds[name[0]]
	f.w.mu.Unlock()
	if s == nil {
		return status.Errorf(codes.NotFound, "feed: no model %q", name[0])
	}
	return s.Subscribe(stream)
}
