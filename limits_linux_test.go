package myriad

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/sock"
)

func TestMoreConnectionsThanDescriptors(t *testing.T) {
	soft, _, ok := sock.DescriptorLimit()
	if !ok || soft > 1<<30 {
		t.Skip("this process has no limit of descriptors that a test could pass")
	}
	srv := Server{Addr: ":0", Handler: Base{}, Limits: Limits{MaxConns: int(soft)}}
	err := srv.ListenAndServe(context.Background())
	if !errors.Is(err, ErrBadConfig) {
		t.Fatalf("%v, want an error that wraps ErrBadConfig", err)
	}
	for _, word := range []string{"RLIMIT_NOFILE", "ulimit -n", "LimitNOFILE"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error %q does not say %q", err, word)
		}
	}
}
