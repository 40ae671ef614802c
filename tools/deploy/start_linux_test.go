package deploy

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
)

// freePort is one of loopback that nobody has.
func freePort(t *testing.T) int {
	t.Helper()
	return int(netip.MustParseAddrPort(testserver.FreeAddr(t)).Port())
}

// What a pod starts, starts, is ready, has the metric by which pods are scaled, and ends in
// order when it is told to.
func TestPodStarts(t *testing.T) {
	for _, values := range []map[string]any{
		{"mode": "serve"},
		{"hub": map[string]any{"insecure": true}, "replicas": 1},
		{"hub": map[string]any{"insecure": true}, "cluster": map[string]any{"enabled": true, "secret": "s", "port": freePort(t)}},
	} {
		port, admin := freePort(t), freePort(t)
		values["port"], values["adminPort"], values["connections"] = port, admin, 1000
		p, kind := pod(t, mustRender(t, values))
		// What the kubelet fills in; there is one pod, and no DNS.
		names := strings.NewReplacer("m-0.m-nodes.$(POD_NAMESPACE).svc", "127.0.0.1", "m-1.m-nodes.$(POD_NAMESPACE).svc", "127.0.0.1",
			"m-2.m-nodes.$(POD_NAMESPACE).svc", "127.0.0.1", "$(POD_NAME).m-nodes.$(POD_NAMESPACE).svc", "127.0.0.1", "$(POD_NAME)", "m-0")
		var args []string
		for _, arg := range p.Containers[0].Args {
			args = append(args, names.Replace(arg))
		}
		t.Run(fmt.Sprintf("%s %s", args[0], kind), func(t *testing.T) { starts(t, args, port, admin) })
	}
}

func starts(t *testing.T, args []string, port, admin int) {
	cmd := exec.Command(binary(t), args...)
	cmd.Env = []string{"MYRIAD_CLUSTER_SECRET=a secret that is long enough"}
	p := testkit.Start(t, cmd)
	get := func(path string) (int, string) {
		r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", admin, path))
		if err != nil {
			return 0, ""
		}
		defer r.Body.Close()
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		return r.StatusCode, string(body)
	}
	testkit.WaitFor(t, "the pod is ready", func() bool { code, _ := get("/readyz"); return code == 200 })
	conn := testkit.Dial(t, fmt.Sprintf("127.0.0.1:%d", port))
	testkit.WaitFor(t, "the connection counts", func() bool { _, body := get("/metrics"); return strings.Contains(body, "\nmyriad_connections 1\n") })
	if code, _ := get("/healthz"); code != 200 {
		t.Errorf("/healthz answers %d", code)
	}
	p.Signal(syscall.SIGTERM)
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Errorf("the client was not sent away in order: %v", err)
	}
	conn.Close()
	if code := p.WaitExitCode(); code != 0 {
		t.Errorf("it ended with %d", code)
	}
}
