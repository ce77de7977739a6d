package server

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/generate"
	"grebe/internal/wire"
)

func (s *Server) getCatalog(*http.Request, string) (reply, error) {
	return reply{body: wire.EncodeCatalog(s.describeCatalog())}, nil
}

func (s *Server) postActivate(r *http.Request, _ string) (reply, error) {
	return post(r, wire.DecodeActivateCatalog, s.ActivateCatalog, wire.EncodeCatalog)
}

func (s *Server) postRollback(r *http.Request, _ string) (reply, error) {
	return post(r, wire.DecodeRollbackCatalog, s.RollbackCatalog, wire.EncodeCatalog)
}

// GetCatalog describes the catalog.
func (s *Server) GetCatalog(context.Context, *grebev1.GetCatalogRequest) (*grebev1.CatalogResponse, error) {
	return s.describeCatalog(), nil
}

// ActivateCatalog has models generate the items of one version of the catalog. Requests under way keep
// theirs.
func (s *Server) ActivateCatalog(_ context.Context, req *grebev1.ActivateCatalogRequest) (*grebev1.CatalogResponse, error) {
	if err := s.checkVersioned(req.Model); err != nil {
		return nil, err
	}
	if req.Version == "" {
		return nil, errorf(invalidArgument, "version", "is missing: give one of /v1/catalog, or %q", generate.Auto)
	}
	if req.Version == generate.Auto && req.Digest != "" {
		return nil, errorf(invalidArgument, "digest", "belongs to a version: %q has none", generate.Auto)
	}
	if err := s.cfg.Versions.Activate(req.Model, req.Version, req.Digest); err != nil {
		return nil, s.versionError(err, req.Version)
	}
	return s.describeCatalog(), nil
}

// RollbackCatalog activates the version before the one in use.
func (s *Server) RollbackCatalog(_ context.Context, req *grebev1.RollbackCatalogRequest) (*grebev1.CatalogResponse, error) {
	if err := s.checkVersioned(req.Model); err != nil {
		return nil, err
	}
	if err := s.cfg.Versions.Rollback(req.Model); err != nil {
		return nil, s.versionError(err, "")
	}
	return s.describeCatalog(), nil
}

// checkVersioned refuses a model that generates nothing.
func (s *Server) checkVersioned(model string) error {
	if model != "" {
		sl, err := s.slot(model)
		if err != nil {
			return err
		}
		if sl.serving().Generate == nil {
			return errorf(unprocessable, "model", "%s has no codes: it generates no items", quoted(model))
		}
	}
	if s.cfg.Versions == nil {
		return errorf(unprocessable, "", "no model has codes: there are no versions to choose from")
	}
	return nil
}

func (s *Server) versionError(err error, version string) error {
	switch {
	case errors.Is(err, generate.ErrNoVersion):
		return errorf(notFound, "version", "no version %s is kept: /v1/catalog lists those that are", quoted(version))
	case errors.Is(err, generate.ErrDigest):
		return errorf(conflict, "digest", "%v", err)
	case errors.Is(err, generate.ErrOldest):
		return errorf(conflict, "", "%v", err)
	}
	s.log.Error("a version of the catalog cannot be activated", "version", version, "error", err)
	return errorf(unavailable, "", "the version cannot be activated: the log says why")
}

func (s *Server) describeCatalog() *grebev1.CatalogResponse {
	st := s.catalog.Stats()
	resp := &grebev1.CatalogResponse{
		Items: int64(st.Items), Users: int64(st.Users), Version: strconv.FormatUint(st.Version, 10), Digest: st.Digest,
		MemoryBytes: st.Memory, Durable: st.Durable, Id: st.ID,
	}
	var versions []generate.VersionInfo
	if s.cfg.Versions != nil {
		versions = s.cfg.Versions.Versions() // before the models: those that have followed a version since are not behind it below
	}
	for _, sl := range s.served {
		m := sl.serving()
		if snap := m.snapshot(); snap != nil {
			resp.Models = append(resp.Models, &grebev1.Snapshot{
				Model: m.Name, Version: snap.Version, Digest: snap.Digest(),
				Items: int64(snap.Len()), Skipped: int64(snap.Skipped), AgeSeconds: time.Since(snap.Created).Seconds(),
				Pinned:   s.cfg.Versions != nil && s.cfg.Versions.Pinned(m.Name),
				Unusable: int64(snap.Unusable), Examples: snap.Examples,
			})
		}
	}
	for _, v := range versions {
		resp.Versions = append(resp.Versions, &grebev1.CatalogVersion{
			Version: v.Version, Digest: v.Digest, Items: int64(v.Items), AgeSeconds: time.Since(v.Created).Seconds(), Models: v.Models,
		})
	}
	return resp
}
