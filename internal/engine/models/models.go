// Package models lists the I/O models.
package models

import (
	"fmt"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/epoll"
	"github.com/myriad-go/myriad/internal/engine/goroutine"
	"github.com/myriad-go/myriad/internal/engine/uring"
)

// All returns all I/O models in ascending order of preference.
func All() []engine.Model {
	return []engine.Model{goroutine.Model, epoll.Model, uring.Model}
}

// BestAvailable returns the most preferred model among those that can run on this machine. If m is not the most
// preferred of all models, preferredErr is the reason why that model cannot run. Otherwise, preferredErr is nil.
func BestAvailable() (m engine.Model, preferredErr error) {
	all := All()
	preferredErr = all[len(all)-1].Available()
	for i := len(all) - 1; i > 0; i-- {
		if all[i].Available() == nil {
			return all[i], preferredErr
		}
	}
	return all[0], preferredErr
}

// Auto is the model name that selects the best model available on this machine.
const Auto = "auto"

// FindAvailable returns the model with the given name. The names "" and Auto select the best available model. An
// unknown or unavailable model is an error.
func FindAvailable(nameOrAuto string) (engine.Model, error) {
	if nameOrAuto == "" || nameOrAuto == Auto {
		best, _ := BestAvailable()
		return best, nil
	}
	names := []string{Auto}
	var unavailable error
	for _, m := range All() {
		err := m.Available()
		switch {
		case err == nil && m.Name == nameOrAuto:
			return m, nil
		case err == nil:
			names = append(names, m.Name)
		case m.Name == nameOrAuto:
			unavailable = err
		}
	}
	expected := strings.Join(names, ", ")
	if unavailable != nil {
		return engine.Model{}, fmt.Errorf("%w; expected one of %s", unavailable, expected)
	}
	return engine.Model{}, fmt.Errorf("unknown I/O model %q; expected one of %s", nameOrAuto, expected)
}

// StartWithFallback starts an engine with model m. If m fails to start and required is false, it tries the less
// preferred models that use event loops. used is the model of the started engine. If another model than m was started,
// fallbackReason is the error with which m failed. If no model starts, err is this error.
//
// The fallback fails if cfg contains open listener sockets, because the failed start closes them.
func StartWithFallback(m engine.Model, required bool, cfg engine.Config) (e engine.Engine, used engine.Model, fallbackReason, err error) {
	e, err = m.Start(cfg)
	if err == nil || required {
		return e, m, nil, err
	}
	all := All()
	for i := slices.IndexFunc(all, func(o engine.Model) bool { return o.Name == m.Name }) - 1; i >= 0; i-- {
		if !all[i].HasLoops || all[i].Available() != nil {
			continue
		}
		if e, second := all[i].Start(cfg); second == nil {
			return e, all[i], err, nil
		}
	}
	return nil, m, nil, err
}
