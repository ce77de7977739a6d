package server

import (
	"context"
	"crypto/tls"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
	"grebe/serve"
	"grebe/server/guard"
)

// grpcService implements the generated interface, which requires an embedded type, with a Service.
type grpcService struct {
	grebev1.UnimplementedGrebeServer
	s *serve.Service
}

func (g grpcService) Rank(ctx context.Context, r *grebev1.RankRequest) (*grebev1.RankResponse, error) {
	return g.s.Rank(ctx, r)
}

func (g grpcService) Recommend(ctx context.Context, r *grebev1.RecommendRequest) (*grebev1.RecommendResponse, error) {
	return g.s.Recommend(ctx, r)
}

func (g grpcService) Score(ctx context.Context, r *grebev1.ScoreRequest) (*grebev1.ScoreResponse, error) {
	return g.s.Score(ctx, r)
}

func (g grpcService) Rerank(ctx context.Context, r *grebev1.RerankRequest) (*grebev1.RerankResponse, error) {
	return g.s.Rerank(ctx, r)
}

func (g grpcService) ListModels(ctx context.Context,
	r *grebev1.ListModelsRequest) (*grebev1.ListModelsResponse, error) {
	return g.s.ListModels(ctx, r)
}

func (g grpcService) ReloadModel(ctx context.Context, r *grebev1.ReloadModelRequest) (*grebev1.Model, error) {
	return g.s.ReloadModel(ctx, r)
}

func (g grpcService) RollbackModel(ctx context.Context, r *grebev1.RollbackModelRequest) (*grebev1.Model, error) {
	return g.s.RollbackModel(ctx, r)
}

func (g grpcService) GetCatalog(ctx context.Context, r *grebev1.GetCatalogRequest) (*grebev1.CatalogResponse, error) {
	return g.s.GetCatalog(ctx, r)
}

func (g grpcService) ActivateCatalog(ctx context.Context,
	r *grebev1.ActivateCatalogRequest) (*grebev1.CatalogResponse, error) {
	return g.s.ActivateCatalog(ctx, r)
}

func (g grpcService) RollbackCatalog(ctx context.Context,
	r *grebev1.RollbackCatalogRequest) (*grebev1.CatalogResponse, error) {
	return g.s.RollbackCatalog(ctx, r)
}

// newGRPC returns a gRPC server with the Grebe service, the health service and reflection. secure may be nil.
func (s *Server) newGRPC(secure *tls.Config) *grpc.Server {
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(int(s.cfg.MaxBody)),
		grpc.MaxConcurrentStreams(uint32(min(s.cfg.MaxInFlight, maxStreams))),
		grpc.InTapHandle(s.tap),
		grpc.ConnectionTimeout(s.cfg.HeaderTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: s.cfg.IdleTimeout}),
		grpc.ForceServerCodecV2(boundedCodec{encoding.GetCodecV2(grpcproto.Name)}),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(s.intercept),
		grpc.StreamInterceptor(s.watch),
	}
	if secure != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(secure)))
	}
	g := grpc.NewServer(opts...)
	grebev1.RegisterGrebeServer(g, grpcService{s: s.service})
	grpc_health_v1.RegisterHealthServer(g, s.health)
	reflection.Register(g)
	return g
}

// maxStreams bounds the calls in flight on one connection: each may hold a message of MaxBody.
const maxStreams = 128

// defaultPatience is how long reading a message may take until it counts as slow. gRPC does not report the bytes of a
// message before it is complete, so tap reserves memory for each: smallBody bytes, and MaxBody for a slow one. The
// server then holds at most MaxBuffered, and what arrives within this time.
const defaultPatience = time.Second

// mostReading is the number of messages that may be read at a time.
func (s *Server) mostReading() int64 { return max(1, s.cfg.MaxBuffered/smallBody) }

// tap runs before the message of a call is read. It refuses calls without a valid key, and calls beyond mostReading
// over all connections. It cancels a call whose message takes longer than ReadTimeout, and a slow one if there are
// too many slow ones.
func (s *Server) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	if strings.HasPrefix(info.FullMethodName, healthPrefix) {
		return ctx, nil
	}
	if err := s.screenCall(ctx, info.Header); err != nil {
		return nil, err
	}
	if grpcOps[info.FullMethodName] == "" && !reflections[info.FullMethodName] {
		return ctx, nil // unknown method: gRPC refuses it
	}
	if err := s.guard.Knows(keyIn(info.Header)); err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	most := s.mostReading()
	if s.reading.Add(1) > most {
		s.reading.Add(-1)
		return nil, status.Errorf(codes.ResourceExhausted, "the messages of %d calls are being read", most)
	}
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(s.cfg.ReadTimeout, cancel)
	slow := time.AfterFunc(s.patience, func() {
		if s.slow.Add(1) > max(1, s.cfg.MaxBuffered/s.cfg.MaxBody) {
			cancel()
		}
	})
	done := sync.OnceFunc(func() {
		late.Stop()
		if !slow.Stop() {
			s.slow.Add(-1)
		}
		s.reading.Add(-1)
	})
	context.AfterFunc(ctx, func() {
		done()
		cancel()
	})
	return context.WithValue(ctx, readKey{}, done), nil
}

// healthPrefix begins the methods of the health service, which need no key.
const healthPrefix = "/grpc.health.v1.Health/"

// readKey is the context key of the function to call once a call's message is read.
type readKey struct{}

// reflections are the streams that describe the API. They need a key if the server has keys.
var reflections = map[string]bool{
	reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName:      true,
	reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName: true,
}

// watch ends streams (health and reflection) when the server stops. gRPC waits for them otherwise.
func (s *Server) watch(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if reflections[info.FullMethod] {
		if err := s.guard.Knows(keyInMetadata(stream.Context())); err != nil {
			return status.Error(codes.Unauthenticated, err.Error())
		}
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.watching, cancel)()
	return next(srv, &watchStream{stream, ctx})
}

type watchStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (w *watchStream) Context() context.Context { return w.ctx }

var grpcOps = map[string]string{
	grebev1.Grebe_Rank_FullMethodName:            "rank",
	grebev1.Grebe_Recommend_FullMethodName:       "recommend",
	grebev1.Grebe_Score_FullMethodName:           "score",
	grebev1.Grebe_Rerank_FullMethodName:          "rerank",
	grebev1.Grebe_ListModels_FullMethodName:      "models",
	grebev1.Grebe_ReloadModel_FullMethodName:     "reload",
	grebev1.Grebe_RollbackModel_FullMethodName:   "reload",
	grebev1.Grebe_GetCatalog_FullMethodName:      "catalog",
	grebev1.Grebe_ActivateCatalog_FullMethodName: "catalog",
	grebev1.Grebe_RollbackCatalog_FullMethodName: "catalog",
}

// intercept traces, guards and counts a call, as Server.serve does for HTTP.
func (s *Server) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	next grpc.UnaryHandler) (any, error) {
	op := grpcOps[info.FullMethod]
	if op == "" {
		return next(ctx, req) // health service
	}
	if read, ok := ctx.Value(readKey{}).(func()); ok {
		read()
	}
	s.handlers.Add(1)
	defer s.handlers.Add(-1)
	start := time.Now()
	ctx, end := s.traceGRPC(arrived(ctx), op)
	resp, err := s.guarded(ctx, op, req, next)
	code := http.StatusOK
	if err != nil {
		e := s.answerFor(err)
		st := statuses[codeOf(e)]
		code, err = st.http, status.Error(st.grpc, e.Error())
	}
	end(code)
	s.metrics.answered(op, code, time.Since(start))
	return resp, err
}

func (s *Server) guarded(ctx context.Context, op string, req any, next grpc.UnaryHandler) (resp any, err error) {
	defer s.service.Rescue(op, &err)
	if _, err := s.guard.Check(keyInMetadata(ctx), roleOf(op), time.Now()); err != nil {
		return nil, err
	}
	release, err := s.admit(s.placesOf(roleOf(op)))
	if err != nil {
		return nil, err
	}
	defer release()
	free, err := s.hold(int64(proto.Size(req.(proto.Message))))
	if err != nil {
		return nil, err
	}
	defer free()
	return next(ctx, req)
}

func roleOf(op string) guard.Role {
	switch op {
	case "catalog":
		return guard.Catalog
	case "reload":
		return guard.Admin
	}
	return guard.Serve
}

// keyInMetadata returns the key of a gRPC call, or "".
func keyInMetadata(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	return keyIn(md)
}

func keyIn(md metadata.MD) string {
	for _, v := range md.Get("authorization") {
		if key := guard.Bearer(v); key != "" {
			return key
		}
	}
	if v := md.Get("x-api-key"); len(v) > 0 {
		return v[0]
	}
	return ""
}

// frontDoor serves gRPC and HTTP on one port.
func (s *Server) frontDoor(g *grpc.Server) http.Handler {
	web := s.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isGRPC(r) {
			if err := s.guard.Knows(presentedKey(r)); err != nil && grpcOps[r.URL.Path] != "" {
				turnAway(w, codes.Unauthenticated, err)
				return
			}
			body := s.meter(w, r, "", false)
			body.timed = grpcOps[r.URL.Path] != "" // streams may stay open
			defer body.free()
			g.ServeHTTP(w, r)
			return
		}
		web.ServeHTTP(w, r)
	})
}

// isGRPC reports whether a request is a gRPC call.
func isGRPC(r *http.Request) bool {
	return r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// turnAway refuses a gRPC call without reading its message.
func turnAway(w http.ResponseWriter, code codes.Code, err error) {
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", strconv.Itoa(int(code)))
	h.Set("Grpc-Message", err.Error())
	w.WriteHeader(http.StatusOK)
}

// setState sets the state that health checks report.
func (s *Server) setState(state int32) {
	s.state.Store(state)
	serving := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if state == ready {
		serving = grpc_health_v1.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", serving)
	s.health.SetServingStatus(grebev1.Grebe_ServiceDesc.ServiceName, serving)
}
