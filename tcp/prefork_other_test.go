//go:build !linux

package tcp

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestProcessesElsewhere(t *testing.T) {
	srv := Server{Addr: "127.0.0.1:0", Handler: Base{}, Processes: 2}
	if err := srv.ListenAndServe(context.Background()); !errors.Is(err, ErrBadConfig) || !strings.Contains(err.Error(), "Linux") {
		t.Errorf("%v; want an error that wraps ErrBadConfig and says where it works", err)
	}
}
