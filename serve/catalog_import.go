package serve

import (
	"context"
	"crypto/rand"
	"errors"

	"grebe/catalog"
	"grebe/generate"
	"grebe/prompt"
)

// maxImportID bounds the bytes of an import's id.
const maxImportID = 64

// Import is the import that a batch of items belongs to. A nil Import is valid and does nothing.
type Import struct {
	s        *Service
	id       string // "": no versions are kept
	named    bool   // the client named it
	begun    bool   // by this request
	ends     bool   // with this request
	ended    bool
	forecast *generate.Forecast // of this request's lines; nil: no model has codes
}

// Import returns the import that the client names, or a new one for this request. It ends with the request if ends is
// true or named is false. It begins with its first change, so a client that sends nothing does not block other
// imports.
func (s *Service) Import(id string, named, ends bool) (*Import, error) {
	im := &Import{s: s, id: id, named: named, ends: ends || !named}
	if len(im.id) > maxImportID || named && im.id == "" {
		return nil, Errorf(InvalidArgument, "import", "%d bytes: want 1 to %d", len(im.id), maxImportID)
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
func (im *Import) begin() error {
	if im == nil || im.id == "" || im.begun {
		return nil
	}
	if err := im.s.cfg.Versions.BeginImport(im.id); err != nil {
		return Errorf(Exhausted, "", "%v", err)
	}
	im.begun = true
	return nil
}

// forecast returns a Forecast of the models' items.
func (s *Service) forecast() *generate.Forecast {
	return generate.NewForecast(func(id string) (*prompt.Item, bool) { return s.catalog.Item(id) },
		s.cfg.Versions.Models()...)
}

func (im *Import) name() string {
	if im == nil {
		return ""
	}
	return im.id
}

// foresee adds a change to the forecast, before it is made.
func (im *Import) foresee(op *catalog.Op) {
	switch {
	case im == nil || im.forecast == nil:
	case op.PutItem != nil:
		im.forecast.Put(op.PutItem.Id, op.PutItem.Codes)
	default:
		im.forecast.Delete(op.DeleteItem)
	}
}

// end turns the import into a version, once. It continues if the client is gone: the imported items stay.
func (im *Import) end(ctx context.Context) error {
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

// Forecast predicts how changes of items affect the items that models can generate. It changes nothing.
type Forecast struct {
	s       *Service
	of      Import
	unknown catalog.UnknownItems
}

// Forecast returns a Forecast without changes.
func (s *Service) Forecast() *Forecast {
	f := &Forecast{s: s}
	if s.cfg.Versions != nil {
		f.of.forecast = s.forecast()
	}
	return f
}

// Foresee adds a change and returns what it would do to the catalog by itself. The error is that users cannot be read.
func (f *Forecast) Foresee(ctx context.Context, op *catalog.Op) (catalog.Result, error) {
	if op.PutItem != nil || op.DeleteItem != "" {
		f.of.foresee(op)
	}
	f.s.unknown(&f.unknown, op)
	if f.s.cfg.Users == nil {
		return f.s.catalog.Preview([]catalog.Op{*op})[0], nil
	}
	res := f.s.cfg.Users.PreviewWithin(ctx, op)
	if errors.Is(res.Err, catalog.ErrUsers) {
		return res, f.s.catalogError(res.Err)
	}
	return res, nil
}

// Warnings returns what would be accepted but could not be used.
func (f *Forecast) Warnings() []string {
	if text := f.unknown.Warning(); text != "" {
		return []string{text}
	}
	return nil
}

// Impacts returns the effect of the changes on each model that has codes.
func (f *Forecast) Impacts() []generate.Impact {
	out := []generate.Impact{}
	if f.of.forecast != nil {
		out = append(out, f.of.forecast.Impacts()...)
	}
	return out
}

// warnings names the models that do not have an item's codes.
func (s *Service) warnings(codes []int32) (out []string) {
	if s.cfg.Versions == nil || len(codes) == 0 {
		return nil
	}
	for _, m := range s.cfg.Versions.Models() {
		if _, err := m.Prompt.CodeTokens(codes); err != nil {
			out = append(out, "model "+Quoted(m.Name)+" does not have these codes and never generates the item: "+err.Error())
		}
	}
	return out
}

// view returns the items as a model sees them; nil: as the catalog has them.
func (s *Service) view(m *Model) *generate.View {
	switch {
	case m != nil && m.Generate != nil:
		return m.Generate.View()
	case s.cfg.Versions != nil:
		return s.cfg.Versions.View()
	}
	return nil
}

// item returns an item as a model sees it. A nil model means the view of all models.
func (s *Service) item(m *Model, id string) (*prompt.Item, bool) {
	return s.view(m).Item(s.catalog, id)
}
