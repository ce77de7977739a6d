package server

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"

	"github.com/prometheus/common/expfmt"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/wire"
	"grebe/serve"
	"grebe/server/dashboard"
	"grebe/server/openapi"
)

// post decodes a request, calls a method with it and encodes the response.
func post[Req, Resp any](r *http.Request, decode func([]byte) (*Req, error),
	call func(context.Context, *Req) (*Resp, error), encode func(*Resp) []byte) (reply, error) {
	body, err := readBody(r)
	if err != nil {
		return reply{}, err
	}
	req, err := decode(body)
	if err != nil {
		return reply{}, err
	}
	return answered(call(r.Context(), req))(encode)
}

func (s *Server) postRank(r *http.Request, _ string) (reply, error) {
	return post(r, wire.DecodeRank, s.service.Rank, wire.EncodeRank)
}

func (s *Server) postRecommend(r *http.Request, _ string) (reply, error) {
	return post(r, wire.DecodeRecommend, s.service.Recommend, wire.EncodeRecommend)
}

// postScore answers in the format of the request: SGLang's or vLLM's.
func (s *Server) postScore(r *http.Request, _ string) (reply, error) {
	body, err := readBody(r)
	if err != nil {
		return reply{}, err
	}
	one, pairs, err := wire.DecodeScore(body)
	switch {
	case err != nil:
		return reply{}, err
	case pairs != nil:
		return answered(s.service.ScorePairs(r.Context(), pairs))(wire.EncodePairs)
	}
	return answered(s.service.Score(r.Context(), one))(wire.EncodeScore)
}

// postRerank answers in the format of the request: that of Jina and Cohere, or TEI's.
func (s *Server) postRerank(r *http.Request, _ string) (reply, error) {
	body, err := readBody(r)
	if err != nil {
		return reply{}, err
	}
	req, texts, err := wire.DecodeRerank(body)
	if err != nil {
		return reply{}, err
	}
	encode := wire.EncodeRerank
	if texts {
		encode = wire.EncodeRerankTEI
	}
	return answered(s.service.Rerank(r.Context(), req))(encode)
}

// postRerankCohere answers in the format of Cohere's API v2.
func (s *Server) postRerankCohere(r *http.Request, _ string) (reply, error) {
	decode := func(in []byte) (*grebev1.RerankRequest, error) {
		req, _, err := wire.DecodeRerank(in)
		return req, err
	}
	return post(r, decode, s.service.Rerank, wire.EncodeRerankCohere)
}

// postCompletion answers in the format of OpenAI's API.
func (s *Server) postCompletion(r *http.Request, _ string) (reply, error) {
	return post(r, wire.DecodeCompletion, s.service.Complete, wire.EncodeCompletion)
}

// postChat answers in the format of OpenAI's API for chats.
func (s *Server) postChat(r *http.Request, _ string) (reply, error) {
	return post(r, wire.DecodeChat, s.service.Complete, wire.EncodeChat)
}

// answered returns a function that encodes a response, or passes on the error.
func answered[Resp any](resp *Resp, err error) func(encode func(*Resp) []byte) (reply, error) {
	return func(encode func(*Resp) []byte) (reply, error) {
		if err != nil {
			return reply{}, err
		}
		return reply{body: encode(resp)}, nil
	}
}

func (s *Server) getModels(r *http.Request, _ string) (reply, error) {
	resp, err := s.service.ListModels(r.Context(), nil)
	if err != nil {
		return reply{}, err
	}
	return reply{body: wire.EncodeModels(resp)}, nil
}

func (s *Server) getModel(_ *http.Request, name string) (reply, error) {
	return answered(s.service.Model(name))(wire.EncodeModel)
}

func (s *Server) postReload(r *http.Request, name string) (reply, error) {
	return reloadReply(post(r, wire.DecodeReloadModel,
		func(ctx context.Context, req *grebev1.ReloadModelRequest) (*grebev1.Model, error) {
			req.Model = name
			return s.service.ReloadModel(ctx, req)
		}, wire.EncodeModel))
}

func (s *Server) postRollbackModel(r *http.Request, name string) (reply, error) {
	return reloadReply(post(r, wire.DecodeRollbackModel,
		func(ctx context.Context, req *grebev1.RollbackModelRequest) (*grebev1.Model, error) {
			req.Model = name
			return s.service.RollbackModel(ctx, req)
		}, wire.EncodeModel))
}

// reloadReply answers 202: the reload goes on after the answer, which has its progress.
func reloadReply(rep reply, err error) (reply, error) {
	rep.status = http.StatusAccepted
	return rep, err
}

// alive is the answer of a process that works.
var alive = []byte("{\"live\":true}\n")

func (s *Server) getLive(*http.Request, string) (reply, error) {
	return reply{body: alive}, nil
}

func (s *Server) getReady(*http.Request, string) (reply, error) {
	switch s.state.Load() {
	case starting:
		return reply{}, serve.Errorf(serve.Unavailable, "", "not ready yet")
	case draining:
		return reply{}, serve.Errorf(serve.Unavailable, "", "shutting down")
	}
	problems := s.service.Problems()
	if len(problems) == 0 {
		return reply{body: []byte("{\"ready\":true}\n")}, nil
	}
	body, err := json.Marshal(struct {
		Ready    bool     `json:"ready"`
		Degraded []string `json:"degraded"`
	}{true, problems})
	return reply{body: append(body, '\n')}, err
}

// getOpenAPI returns the OpenAPI description, for client generators.
func (s *Server) getOpenAPI(*http.Request, string) (reply, error) {
	return reply{body: openapi.Document(s.cfg.Version)}, nil
}

// getMetrics writes the registry in Prometheus' text format.
func (s *Server) getMetrics(*http.Request, string) (reply, error) {
	families, err := s.service.Registry().Gather()
	if err != nil {
		return reply{}, err
	}
	var b bytes.Buffer
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	enc := expfmt.NewEncoder(&b, format)
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return reply{}, err
		}
	}
	return reply{kind: string(format), body: b.Bytes()}, nil
}

// page is the dashboard. Its script requests the data, with the key that the reader enters.
func (s *Server) page(*http.Request, string) (reply, error) {
	body, err := dashboard.Page(dashboard.About{Node: s.service.Node(), Version: s.cfg.Version,
		SLOMillis: s.service.SLO().Milliseconds(),
		Fleet:     s.cfg.Fleet != nil, Story: s.cfg.Story})
	return reply{kind: "text/html; charset=utf-8", body: body, policy: dashboard.Policy}, err
}

// asset is a file of the dashboard.
func (s *Server) asset(_ *http.Request, name string) (reply, error) {
	body, kind := dashboard.File(name)
	return reply{kind: kind, body: body, policy: dashboard.Policy}, nil
}
