package load

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// nginxConfig is that of a server in one process, which has all its files in its working
// directory. %s is its port, and what belongs to TLS.
const nginxConfig = `
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events { worker_connections 200; }
http {
	access_log off;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	default_type text/plain;
	gzip on;
	gzip_types text/plain;
	keepalive_timeout 1h;
	keepalive_requests 1000000000;
	server { listen 127.0.0.1:%s; root .; location /few { keepalive_requests 3; } }
}
`

// TestInterop loads servers that others wrote, where they are installed.
func TestInterop(t *testing.T) {
	own, _ := identity()
	private, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]}))
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	large, value := strings.Repeat("0123456789abcdef", 10_000), strings.Repeat("x", 100_000)
	get := func(path string) Config {
		return Config{Match: matchHTTP, Message: "GET " + path + " HTTP/1.1\r\nHost: there\r\n\r\n"}
	}
	secured := get("/hello")
	secured.TLS = clientTLS()
	reversed := Config{Message: "stressed\n", Answer: "desserts\n", TLS: clientTLS(), Connections: 1}
	nginx := func(port string) []string { return []string{"-p", "./", "-c", "nginx.conf", "-e", "stderr"} }
	openssl := func(flag string) func(port string) []string {
		return func(port string) []string { // it serves one connection at a time
			return []string{"s_server", "-quiet", "-rev", "-accept", "127.0.0.1:" + port, "-cert", "cert.pem", "-key", "key.pem", flag}
		}
	}
	for name, test := range map[string]struct {
		program string
		args    func(port string) []string
		listen  string // of nginx, behind the port
		loads   []Config
	}{
		"redis": {"redis-server", func(port string) []string {
			return []string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--daemonize", "no"}
		}, "", []Config{{Message: "PING\r\n", Answer: "+PONG\r\n"}}},
		"memcached": {"memcached", func(port string) []string {
			return []string{"-l", "127.0.0.1", "-p", port, "-U", "0", "-u", "root", "-t", "1", "-m", "16"}
		}, "", []Config{
			{Message: "get nosuch\r\n", Answer: "END\r\n"},
			{Message: fmt.Sprintf("set large 0 0 %d\r\n%s\r\n", len(value), value), Answer: "STORED\r\n", Connections: 4},
			{Message: "get large\r\n", Answer: fmt.Sprintf("VALUE large 0 %d\r\n%s\r\nEND\r\n", len(value), value), Connections: 4},
		}},
		"nginx":            {"nginx", nginx, "", []Config{get("/hello"), get("/large"), get("/few")}},
		"nginx with TLS":   {"nginx", nginx, " ssl; ssl_protocols TLSv1.3; ssl_certificate cert.pem; ssl_certificate_key key.pem", []Config{secured}},
		"openssl, TLS 1.2": {"openssl", openssl("-tls1_2"), "", []Config{reversed}},
		"openssl, TLS 1.3": {"openssl", openssl("-tls1_3"), "", []Config{reversed}},
	} {
		path, err := exec.LookPath(test.program)
		if err != nil {
			path, err = exec.LookPath(filepath.Join("/usr/sbin", test.program))
		}
		if err != nil {
			t.Logf("%s is not installed: %v", test.program, err)
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := refusing(t)
			_, port, _ := net.SplitHostPort(addr)
			dir := t.TempDir()
			for name, text := range map[string]string{"cert.pem": cert, "key.pem": key, "hello": "Hello, World!", "few": "few", "large": large, "nginx.conf": fmt.Sprintf(nginxConfig, port+test.listen)} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			startProgram(t, dir, addr, path, test.args(port)...)
			for _, cfg := range test.loads {
				for _, model := range availableModels() {
					cfg.Target, cfg.Model, cfg.Pipeline, cfg.Messages = addr, model, 16, 40
					setDefault(&cfg.Connections, 20)
					r := check(t, cfg)
					if err := r.Err(); err != nil || r.Connected != cfg.Connections || r.Answered != int64(cfg.Connections)*cfg.Messages {
						t.Errorf("%s: %v: %d of %d connected, %v, %d answers", model, err, r.Connected, cfg.Connections, r.ConnectErrors, r.Answered)
					}
					if few := strings.Contains(string(cfg.Message), "/few"); few != (r.Reconnected >= int64(cfg.Connections)*cfg.Messages/3-int64(cfg.Connections)) {
						t.Errorf("%s: %s: reconnected %d times", model, cfg.Message, r.Reconnected)
					}
					if test.program == "openssl" && !strings.HasPrefix(r.TLS, strings.TrimPrefix(name, "openssl, ")+", ") {
						t.Errorf("%s: agreed on %q", model, r.TLS)
					}
				}
			}
		})
	}
}

// startProgram starts a server, waits until it takes connections, and ends it when the
// test ends. The kernel ends it if this process is killed: so it is started by a thread
// that lives as long.
func startProgram(t *testing.T, dir, addr, path string, args ...string) {
	t.Helper()
	var said strings.Builder
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
			t.Errorf("%s has not ended when it was told to", path)
		}
		if t.Failed() {
			t.Logf("%s said: %s", path, said.String())
		}
	})
	testkit.WaitForFunc(t, func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	}, func() string { return path + " takes no connection" })
}
