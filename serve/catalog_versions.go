package serve

import (
	"context"
	"errors"
	"strconv"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/generate"
)

// GetCatalog describes the catalog.
func (s *Service) GetCatalog(context.Context, *grebev1.GetCatalogRequest) (*grebev1.CatalogResponse, error) {
	return s.describeCatalog(), nil
}

// Keeper returns the versions of the catalog; nil: no model generates items.
func (s *Service) Keeper() *generate.Keeper { return s.cfg.Versions }

// ActivateCatalog makes models generate the items of one version of the catalog, on all nodes of a cluster. Requests in
// flight keep their version.
func (s *Service) ActivateCatalog(ctx context.Context,
	req *grebev1.ActivateCatalogRequest) (*grebev1.CatalogResponse, error) {
	if err := s.checkVersioned(req.Model); err != nil {
		return nil, err
	}
	if req.Version == "" {
		return nil, Errorf(InvalidArgument, "version", "is missing: give one of /v1/catalog, or %q", generate.Auto)
	}
	if req.Version == generate.Auto && req.Digest != "" {
		return nil, Errorf(InvalidArgument, "digest", "belongs to a version: %q has none", generate.Auto)
	}
	var err error
	if s.cfg.Cluster != nil {
		err = s.cfg.Cluster.Activate(ctx, req.Model, req.Version, req.Digest)
	} else {
		err = s.cfg.Versions.Activate(req.Model, req.Version, req.Digest)
	}
	if err != nil {
		return nil, s.versionError(err, req.Version)
	}
	return s.describeCatalog(), nil
}

// RollbackCatalog activates the version before the one in use.
func (s *Service) RollbackCatalog(ctx context.Context,
	req *grebev1.RollbackCatalogRequest) (*grebev1.CatalogResponse, error) {
	if err := s.checkVersioned(req.Model); err != nil {
		return nil, err
	}
	var err error
	if s.cfg.Cluster != nil {
		err = s.cfg.Cluster.Rollback(ctx, req.Model)
	} else {
		err = s.cfg.Versions.Rollback(req.Model)
	}
	if err != nil {
		return nil, s.versionError(err, "")
	}
	return s.describeCatalog(), nil
}

// checkVersioned refuses a model that generates no items.
func (s *Service) checkVersioned(model string) error {
	if model != "" {
		sl, err := s.slot(model)
		if err != nil {
			return err
		}
		if sl.serving().Generate == nil {
			return Errorf(Unprocessable, "model", "%s has no codes: it generates no items", Quoted(model))
		}
	}
	if s.cfg.Versions == nil {
		return Errorf(Unprocessable, "", "no model has codes, so no versions are kept: to undo an import, "+
			"import the items as they were")
	}
	return nil
}

func (s *Service) versionError(err error, version string) error {
	switch {
	case errors.Is(err, generate.ErrNoVersion):
		return Errorf(NotFound, "version", "no version %s is kept: /v1/catalog lists those that are", Quoted(version))
	case errors.Is(err, generate.ErrDigest):
		return Errorf(Conflict, "digest", "%v", err)
	case errors.Is(err, generate.ErrOldest):
		return Errorf(Conflict, "", "%v", err)
	case errors.As(err, new(*Error)):
		return err
	}
	s.log.Error("a version of the catalog cannot be activated", "version", version, "error", err)
	return Errorf(Unavailable, "", "the version cannot be activated: the log says why")
}

func (s *Service) describeCatalog() *grebev1.CatalogResponse {
	st := s.catalog.Stats()
	resp := &grebev1.CatalogResponse{
		Items: int64(st.Items), Users: int64(st.Users), Version: strconv.FormatUint(st.Version, 10), Digest: st.Digest,
		MemoryBytes: st.Memory, Durable: st.Durable, Id: st.ID,
	}
	var versions []generate.VersionInfo
	if s.cfg.Versions != nil {
		versions = s.cfg.Versions.Versions() // read before the models, which may follow a newer version meanwhile
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
			Version: v.Version, Digest: v.Digest, Items: int64(v.Items), AgeSeconds: time.Since(v.Created).Seconds(),
			Models: v.Models,
		})
	}
	return resp
}
