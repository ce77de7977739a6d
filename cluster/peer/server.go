package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Holder is the node's store of KV. Its methods may be called concurrently.
type Holder interface {
	// Read finds the block of a want and fills b, which is empty. It returns Hit, Miss or Busy. After a Hit the content of
	// b MUST NOT change until the server calls Release. The want and the space are valid during the call only.
	Read(ctx context.Context, s *Space, w *Want, b *Block) Status
	// Release ends the use of a block.
	Release(b *Block)
}

// Block is an entry that is sent.
type Block struct {
	Meta   []byte   // at most MaxMeta bytes. Read MUST append to it
	Pieces [][]byte // the payload, at most MaxPayload bytes. Read MUST append to it
	Ref    any      // the holder's, for Release
	// Sum is the payload's CRC-32C, valid if Summed is true. Read sets both if the holder knows it, as for a record on
	// disk. Otherwise the server computes it, and Release may keep it for the next time: moving a block takes about a
	// sixth less CPU time then.
	Sum    uint32
	Summed bool
}

// ServerOptions configure a server. Zero values mean the default.
type ServerOptions struct {
	Node   string                  // this node's id
	Holder Holder                  // required
	Epoch  func(epoch uint64) bool // reports whether requests of an epoch are answered now; required
	// TLS secures connections. nil: they are not secured, or were before Serve got them; then they have a method
	// ConnectionState.
	TLS *tls.Config
	// the node at the other end; required for secured connections, else nil
	NodeOf   func(tls.ConnectionState) (string, error)
	MaxConns int // 1,024
	MaxReads int // blocks that are read or sent at a time; 64
	// of the blocks that are read or sent at a time; 256 MiB. A larger block is sent alone
	MaxBytes int64
	Log      *slog.Logger // logs refused connections, at most one per second; default none
}

func (o *ServerOptions) setDefaults() error {
	if o.MaxConns == 0 {
		o.MaxConns = 1024
	}
	if o.MaxReads == 0 {
		o.MaxReads = 64
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 256 << 20
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.Node == "" || len(o.Node) > maxName:
		return fmt.Errorf("peer: node %q needs a name of 1 to %d bytes", o.Node, maxName)
	case o.Holder == nil || o.Epoch == nil:
		return errors.New("peer: a server needs a holder and an epoch")
	case o.TLS != nil && o.NodeOf == nil:
		return errors.New("peer: a server with TLS needs NodeOf")
	case o.MaxConns < 0 || o.MaxReads < 0 || o.MaxBytes < 0:
		return errors.New("peer: a server's bounds must not be negative")
	}
	return nil
}

// Server answers peers.
type Server struct {
	opt      ServerOptions
	versions versions
	conns    chan struct{} // holds one element per connection
	reads    atomic.Int64  // blocks that are read or sent
	bytes    atomic.Int64  // of these
	logged   atomic.Int64  // when a refusal was logged last, in Unix seconds
	stats    serverCounts

	mu     sync.Mutex
	toNode map[string]*sent // at most maxNamed
}

// sent counts blocks that were sent to a node.
type sent struct{ blocks, bytes atomic.Int64 }

// maxNamed bounds the nodes whose blocks are counted: without TLS a node can take any name.
const maxNamed = 256

// sentTo returns the counts of a node, or some that nobody reads if there are too many nodes.
func (s *Server) sentTo(node string) *sent {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.toNode[node]
	if n == nil {
		n = new(sent)
		if len(s.toNode) < maxNamed {
			s.toNode[node] = n
		}
	}
	return n
}

// Sent returns how many blocks were sent to a node, and the bytes of their payload.
func (s *Server) Sent(node string) (blocks, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.toNode[node]; n != nil {
		return n.blocks.Load(), n.bytes.Load()
	}
	return 0, 0
}

type serverCounts struct {
	of                    [numStatuses]atomic.Int64
	bytes, refused, wrong atomic.Int64
}

// ServerStats are counts since NewServer, except Conns, Reads and Held, which are current amounts.
type ServerStats struct {
	Conns   int
	Reads   int64              // blocks that are read or sent
	Held    int64              // bytes of these
	Answers [numStatuses]int64 // by status
	Bytes   int64              // of payload that was sent
	Refused int64              // connections: too many, not authenticated, of another version, meant for another node
	Garbage int64              // connections that were closed because of what they sent
}

// NewServer returns a server. Serve runs it.
func NewServer(o ServerOptions) (*Server, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	return &Server{opt: o, versions: spoken, conns: make(chan struct{}, o.MaxConns), toNode: map[string]*sent{}}, nil
}

// Stats returns the counts.
func (s *Server) Stats() ServerStats {
	out := ServerStats{
		Conns: len(s.conns), Reads: s.reads.Load(), Held: s.bytes.Load(),
		Bytes: s.stats.bytes.Load(), Refused: s.stats.refused.Load(), Garbage: s.stats.wrong.Load(),
	}
	for i := range out.Answers {
		out.Answers[i] = s.stats.of[i].Load()
	}
	return out
}

// Serve accepts connections until ctx ends. Then it closes the listener and all connections and returns when all its
// goroutines have ended. It returns an error if it cannot accept connections.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return nil
		}
		if err != nil {
			if timeout, ok := err.(net.Error); ok && timeout.Timeout() || isTemporary(err) {
				pause(ctx, 10*time.Millisecond) // such as too many open files
				continue
			}
			return fmt.Errorf("peer: accept: %w", err)
		}
		select {
		case s.conns <- struct{}{}:
		default:
			s.refuse(c, fmt.Errorf("%d connections are open", s.opt.MaxConns))
			c.Close()
			continue
		}
		wg.Go(func() {
			defer func() { <-s.conns }()
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			s.handle(ctx, c)
		})
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// refuse counts a connection that is not served, and logs it.
func (s *Server) refuse(c net.Conn, err error) {
	s.stats.refused.Add(1)
	now := time.Now().Unix()
	if last := s.logged.Load(); last < now && s.logged.CompareAndSwap(last, now) {
		s.opt.Log.Warn("peer: refused a connection", "from", c.RemoteAddr(), "reason", err)
	}
}
