// Package embedded runs one etcd server in this process, for small installs and tests. Its data lies in a folder and
// outlives the process.
//
// It keeps little history: the folder does not grow with the number of writes. A start takes about half a second.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// Options of a server.
type Options struct {
	Dir    string       // the folder of its data, created if it does not exist
	Listen string       // host:port for clients; default 127.0.0.1:0, a free port
	Cert   string       // file of the server's certificate; required unless Listen is a loopback address
	Key    string       // file of its key
	CA     string       // file of the authority whose certificates clients must present
	Log    *slog.Logger // warnings and errors of etcd; nil: none
	// etcd's election timeout, of which a lease lasts at least 1.5; default 1 s. A tick is a tenth of it
	Election time.Duration
}

// Validate checks the options.
func (o Options) Validate() error {
	if o.Dir == "" {
		return errors.New("embedded etcd: no folder")
	}
	if o.Election < 0 || o.Election > 50*time.Second || o.Election > 0 && o.Election < 100*time.Millisecond {
		return fmt.Errorf("embedded etcd: election timeout %v is not between 100 ms and 50 s", o.Election)
	}
	if o.Listen == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return fmt.Errorf("embedded etcd: listen on %q: %w", o.Listen, err)
	}
	if ip := net.ParseIP(host); !o.secure() && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("embedded etcd: listen on %s: without certificates only on a loopback address, such as "+
			"127.0.0.1:2379", o.Listen)
	}
	return nil
}

func (o Options) secure() bool { return o.Cert != "" && o.Key != "" && o.CA != "" }

// Server is a running etcd.
type Server struct {
	e       *embed.Etcd
	once    sync.Once
	stop    context.CancelFunc // ends clients' streams
	lock    *os.File           // of the folder
	closing *atomic.Bool       // listeners that end are no failure
}

const (
	quota     = 256 << 20 // bytes of the database, at which etcd refuses writes
	retention = "1000"    // revisions that a compaction keeps, every five minutes
	snapshot  = 5000      // writes between snapshots, after which older log files are removed
	logFiles  = 2         // that are kept beside the one in use
	logFile   = 8 << 20   // bytes of each; etcd makes two at its start
)

// Etcd's 64 MB for each file of its log would make an empty folder take 128 MB.
func init() { wal.SegmentSizeBytes = logFile }

// Start starts a server and waits until it answers. The caller MUST Close it.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("embedded etcd in %s: %w", o.Dir, err)
	}
	s, err := o.start(ctx)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("embedded etcd in %s: %w", o.Dir, err)
	}
	s.lock = lock
	return s, nil
}

// lockDir makes the folder this process's. Etcd itself would wait for another process to leave it.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "grebe.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another process has the folder: %w", err)
	}
	return f, nil
}

func (o Options) start(ctx context.Context) (*Server, error) {
	streams, stop := context.WithCancel(context.Background())
	closing := new(atomic.Bool)
	cfg := o.config()
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(&core{log: o.Log, closing: closing}))
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.ChainStreamInterceptor(endWith(streams))}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		stop()
		return nil, err
	}
	select {
	case <-e.Server.ReadyNotify():
		return &Server{e: e, stop: stop, closing: closing}, nil
	case err = <-e.Err():
	case <-e.Server.StopNotify():
		err = errors.New("stopped while starting")
	case <-ctx.Done():
		err = ctx.Err()
	}
	stop()
	e.Close()
	return nil, err
}

func (o Options) config() *embed.Config {
	cfg := embed.NewConfig()
	cfg.Dir = o.Dir
	scheme := "http"
	if o.secure() {
		scheme = "https"
		cfg.ClientTLSInfo = transport.TLSInfo{CertFile: o.Cert, KeyFile: o.Key, TrustedCAFile: o.CA, ClientCertAuth: true}
	}
	clients := []url.URL{{Scheme: scheme, Host: o.Listen}}
	peers := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}} // it has no peers
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = clients, clients
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peers, peers
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.QuotaBackendBytes = quota
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModeRevision, retention
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = snapshot, snapshot/10
	cfg.MaxWalFiles = logFiles
	cfg.EnableGRPCGateway = false
	if o.Election > 0 {
		cfg.ElectionMs = uint(o.Election.Milliseconds())
		cfg.TickMs = cfg.ElectionMs / 10
	}
	return cfg
}

// Addr returns the address for clients, host:port.
func (s *Server) Addr() string { return s.e.Clients[0].Addr().String() }

// Err reports a failure of the running server.
func (s *Server) Err() <-chan error { return s.e.Err() }

// Close stops the server and waits for it. Its folder can be used again.
func (s *Server) Close() {
	s.once.Do(func() {
		s.closing.Store(true)
		s.stop()
		s.e.Close()
		s.lock.Close()
	})
}

// endWith ends streams with a context. Etcd waits for its clients' watches to end, which takes it 7 s without this.
func endWith(ctx context.Context) grpc.StreamServerInterceptor {
	return func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		own, cancel := context.WithCancel(s.Context())
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		return handle(srv, &stream{s, own})
	}
}

type stream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *stream) Context() context.Context { return s.ctx }
