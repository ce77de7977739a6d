package server

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"

	"grebe/catalog"
	"grebe/generate"
	"grebe/prompt"
)

// maxImportID bounds the bytes of an import's id.
const maxImportID = 64

// itemImport is the import that a batch of items is part of. A nil one is none.
type itemImport struct {
	s        *Server
	id       string // "": no versions are kept
	named    bool   // by the client
	begun    bool   // by this request
	ends     bool   // with this request
	ended    bool
	forecast *generate.Forecast // of the request's lines; nil: no model has codes
}

// importOf returns the import that a request names, or one of its own. It begins with its first change: a client that sends
// nothing keeps nobody else from importing.
func (s *Server) importOf(r *http.Request) (*itemImport, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, errorf(invalidArgument, "", "the query cannot be read: %v", err)
	}
	im := &itemImport{s: s, id: q.Get("import"), named: q.Has("import"), ends: q.Has("end") || !q.Has("import")}
	if len(im.id) > maxImportID || q.Has("import") && im.id == "" {
		return nil, errorf(invalidArgument, "import", "%d bytes: want 1 to %d", len(im.id), maxImportID)
	}
	if s.cfg.Versions == nil {
		im.id = ""
		return im, nil
	}
	if im.id == "" {
		im.id = "request-" + rand.Text()
	}
	im.forecast = s.forecast()
	return im, nil
}

// begin begins the import, once.
func (im *itemImport) begin() error {
	if im == nil || im.id == "" || im.begun {
		return nil
	}
	if err := im.s.cfg.Versions.BeginImport(im.id); err != nil {
		return errorf(exhausted, "", "%v", err)
	}
	im.begun = true
	return nil
}

// forecast begins to say what changes of items leave the models to generate.
func (s *Server) forecast() *generate.Forecast {
	return generate.NewForecast(func(id string) (*prompt.Item, bool) { return s.catalog.Item(id) }, s.cfg.Versions.Models()...)
}

func (im *itemImport) name() string {
	if im == nil {
		return ""
	}
	return im.id
}

// foresee takes in a change before it is made.
func (im *itemImport) foresee(op *catalog.Op) {
	switch {
	case im == nil || im.forecast == nil:
	case op.PutItem != nil:
		im.forecast.Put(op.PutItem.Id, op.PutItem.Codes)
	default:
		im.forecast.Delete(op.DeleteItem)
	}
}

// end makes the import a version, once. It goes on when the client is gone: what was imported stays.
func (im *itemImport) end(ctx context.Context) error {
	if im.id == "" || im.ended || !im.begun && !im.named {
		return nil
	}
	if err := im.begin(); err != nil {
		return err
	}
	im.ended = true
	err := im.s.cfg.Versions.EndImport(context.WithoutCancel(ctx), im.id)
	if err != nil {
		return im.s.catalogError(err)
	}
	return nil
}

// checked is what an import would do.
type checked struct {
	Lines  int               `json:"lines"`
	Failed int               `json:"failed"` // that cannot be read
	Models []generate.Impact `json:"models"` // that have codes
}

// postCheckItems reads lines as postItems does, changes nothing, and says what they would leave each model to generate.
func (s *Server) postCheckItems(r *http.Request, _ string) (reply, error) {
	out := checked{Models: []generate.Impact{}}
	im := &itemImport{}
	if s.cfg.Versions != nil {
		im.forecast = s.forecast()
	}
	err := s.eachLine(r, func() int { return 0 }, func(line []byte, problem error) error {
		if problem == nil && len(bytes.TrimSpace(line)) == 0 {
			return nil
		}
		out.Lines++
		op, err := decodeItemOp(line)
		if errors.Join(problem, err) != nil {
			out.Failed++
			return nil
		}
		im.foresee(&op)
		return nil
	})
	if err != nil {
		return reply{}, err
	}
	if im.forecast != nil {
		out.Models = append(out.Models, im.forecast.Impacts()...)
	}
	return asJSON(out)
}

// warnings says which models do not have an item's codes.
func (s *Server) warnings(id string, codes []int32) (out []string) {
	if s.cfg.Versions == nil || len(codes) == 0 {
		return nil
	}
	for _, m := range s.cfg.Versions.Models() {
		if _, err := m.Prompt.CodeTokens(codes); err != nil {
			out = append(out, "model "+quoted(m.Name)+" does not have these codes and never generates the item: "+err.Error())
		}
	}
	return out
}

// view returns the items as a model sees them; nil: as the catalog has them.
func (s *Server) view(m *Model) *generate.View {
	switch {
	case m != nil && m.Generate != nil:
		return m.Generate.View()
	case s.cfg.Versions != nil:
		return s.cfg.Versions.View()
	}
	return nil
}

// item returns an item as a model sees it, or as all do where none is given.
func (s *Server) item(m *Model, id string) (*prompt.Item, bool) { return s.view(m).Item(s.catalog, id) }
