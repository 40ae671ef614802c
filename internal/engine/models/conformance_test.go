package models_test

import (
	"testing"

	"github.com/myriad-go/myriad/internal/engine/enginetest"
	"github.com/myriad-go/myriad/internal/engine/models"
)

func TestConformance(t *testing.T) {
	for _, m := range models.All() {
		t.Run(m.Name, func(t *testing.T) {
			if err := m.Available(); err != nil {
				t.Skip(err)
			}
			enginetest.Run(t, m)
		})
	}
}
