package server

import (
	"bytes"
	"context"
	"html/template"
	"net/http"
	"strings"

	"github.com/prometheus/common/expfmt"

	"grebe/internal/wire"
)

// post reads a request, calls a method with it and writes the response.
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
	resp, err := call(r.Context(), req)
	if err != nil {
		return reply{}, err
	}
	return reply{body: encode(resp)}, nil
}

func (s *Server) postRank(r *http.Request, _ string) (reply, error) {
	return post(r, wire.DecodeRank, s.Rank, wire.EncodeRank)
}

func (s *Server) postRecommend(r *http.Request, _ string) (reply, error) {
	return post(r, wire.DecodeRecommend, s.Recommend, wire.EncodeRecommend)
}

func (s *Server) postScore(r *http.Request, _ string) (reply, error) {
	return post(r, wire.DecodeScore, s.Score, wire.EncodeScore)
}

func (s *Server) postRerank(r *http.Request, _ string) (reply, error) {
	return post(r, wire.DecodeRerank, s.Rerank, wire.EncodeRerank)
}

func (s *Server) getModels(r *http.Request, _ string) (reply, error) {
	resp, err := s.ListModels(r.Context(), nil)
	if err != nil {
		return reply{}, err
	}
	return reply{body: wire.EncodeModels(resp)}, nil
}

func (s *Server) getLive(*http.Request, string) (reply, error) {
	return reply{body: []byte("{\"live\":true}\n")}, nil
}

func (s *Server) getReady(*http.Request, string) (reply, error) {
	switch s.state.Load() {
	case starting:
		return reply{}, errorf(unavailable, "", "not ready yet")
	case draining:
		return reply{}, errorf(unavailable, "", "shutting down")
	}
	return reply{body: []byte("{\"ready\":true}\n")}, nil
}

// getMetrics writes the registry in Prometheus' text format.
func (s *Server) getMetrics(*http.Request, string) (reply, error) {
	families, err := s.cfg.Registry.Gather()
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

var pageTemplate = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Grebe {{.Node}}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:3rem auto;padding:0 1rem}
table{border-collapse:collapse}td,th{text-align:left;padding:.2rem 1.2rem .2rem 0}</style></head>
<body><h1>Grebe</h1>
<p>Node <b>{{.Node}}</b>{{with .Version}}, version {{.}}{{end}}: {{.State}}. {{.Items}} items and {{.Users}} users in the catalog.</p>
<table><tr><th>model</th><th>architecture</th><th>numbers</th><th>scoring</th></tr>
{{range .Models}}<tr><td>{{.Name}}</td><td>{{.Architecture}}</td><td>{{.DType}}</td><td>{{.Scoring.Kind}}</td></tr>
{{end}}</table>
<p><a href="/metrics">metrics</a> · <a href="/v2/health/live">live</a> · <a href="/v2/health/ready">ready</a> ·
<a href="/v1/models">models</a> · <a href="/v1/catalog">catalog</a></p>
</body></html>
`))

// page says what runs.
func (s *Server) page(*http.Request, string) (reply, error) {
	items, users, _ := s.catalog.Counts()
	var b strings.Builder
	err := pageTemplate.Execute(&b, map[string]any{
		"Node": s.cfg.Node, "Version": s.cfg.Version, "Models": s.cfg.Models, "Items": items, "Users": users,
		"State": [...]string{"starting", "ready", "shutting down"}[s.state.Load()],
	})
	return reply{kind: "text/html; charset=utf-8", body: []byte(b.String())}, err
}
