package load

import (
	"bufio"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// These tests load servers that we did not write, each started by its test. Where one
// is not installed its tests are skipped.

// foreignPatience is how long a server may take to begin, and to end.
const foreignPatience = 20 * time.Second

// program finds a server's program. Some are where only an administrator looks.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath(filepath.Join("/usr/sbin", name))
	}
	if err != nil {
		t.Skipf("%s is not installed: %v", name, err)
	}
	return path
}

// foreign is a server's process.
type foreign struct {
	network, addr string
	cmd           *exec.Cmd
	said          lockedText
	ended         chan struct{} // closed when the process has ended
}

// startForeign starts a server on a free port: args makes its arguments for one. It
// waits until the server takes connections, and ends it when the test ends.
func startForeign(t *testing.T, path string, args func(port string) []string) *foreign {
	t.Helper()
	var f *foreign
	for range 5 { // another process can take the port
		addr := refusing(t)
		_, port, _ := net.SplitHostPort(addr)
		f = &foreign{network: "tcp", addr: addr}
		if f.begin(t, path, args(port)) {
			return f
		}
	}
	t.Fatalf("%s has ended by itself; it says: %s", path, f.said.String())
	return nil
}

// begin starts the process, and says whether it takes connections and has not ended.
func (f *foreign) begin(t *testing.T, path string, args []string) bool {
	t.Helper()
	f.cmd = exec.Command(path, args...)
	f.cmd.Dir = t.TempDir()
	f.cmd.Stdout, f.cmd.Stderr = &f.said, &f.said
	started := make(chan error)
	f.ended = make(chan struct{})
	go f.live(started)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.end(t) })
	for deadline := time.Now().Add(foreignPatience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		taken := f.takes()
		select {
		case <-f.ended:
			return false
		default:
		}
		if taken {
			return true
		}
	}
	t.Fatalf("%s takes no connection at %s after %v; it says: %s", path, f.addr, foreignPatience, f.said.String())
	return false
}

// live starts the process, says how that went, and waits until it has ended. It keeps
// its thread, because with that Linux ends the process, too.
func (f *foreign) live(started chan<- error) {
	defer close(f.ended)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	endsWithThread(f.cmd)
	err := f.cmd.Start()
	started <- err
	if err == nil {
		_ = f.cmd.Wait() // what it says is shown where that matters
	}
}

// takes says whether the address takes a connection.
func (f *foreign) takes() bool {
	c, err := net.Dial(f.network, f.addr)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// end ends the process: in order, or by force if that takes too long.
func (f *foreign) end(t *testing.T) {
	_ = f.cmd.Process.Signal(syscall.SIGTERM) // an error says that it has ended
	select {
	case <-f.ended:
	case <-time.After(foreignPatience):
		_ = f.cmd.Process.Kill()
		<-f.ended
		t.Errorf("%s has not ended within %v; it says: %s", f.cmd.Path, foreignPatience, f.said.String())
	}
}

// lockedText is what a process says, while a test may look.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// target is what a Config calls the address.
func (f *foreign) target() string {
	if f.network == "unix" {
		return "unix:" + f.addr
	}
	return f.addr
}

// bears runs a load of a fraction of a second, or of longer until there is an answer,
// and checks that nothing was wrong with it.
func (f *foreign) bears(t *testing.T, cfg Config) *Result {
	t.Helper()
	cfg.Target = f.target()
	setDefault(&cfg.Connections, 50)
	var r *Result
	for times := range slower(t) {
		if cfg.Messages == 0 {
			cfg.Warmup, cfg.Duration = 20*time.Millisecond, times*200*time.Millisecond
		}
		if r = check(t, cfg); r.Answered > 0 || r.Err() != nil {
			break
		}
	}
	if err := r.Err(); err != nil || r.Connected != cfg.Connections || len(r.ConnectErrors) > 0 {
		t.Fatalf("%v: %d of %d connected, %v; the server says: %s", err, r.Connected, cfg.Connections, r.ConnectErrors, f.said.String())
	}
	if r.Answered == 0 || cfg.Messages > 0 && r.Answered != int64(cfg.Connections)*cfg.Messages {
		t.Errorf("%d answers, want some, and %d from each connection if that is not 0", r.Answered, cfg.Messages)
	}
	return r
}

// eachPipeline runs a load on every model, with one message in flight and with some.
func (f *foreign) eachPipeline(t *testing.T, cfg Config) {
	eachModel(t, func(t *testing.T, model string) {
		for _, pipeline := range []int{1, 16} {
			cfg := cfg
			cfg.Model, cfg.Pipeline = model, pipeline
			f.bears(t, cfg)
			cfg.Messages = 40
			f.bears(t, cfg)
		}
	})
}

func startRedis(t *testing.T) *foreign {
	return startForeign(t, program(t, "redis-server"), func(port string) []string {
		return []string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--daemonize", "no"}
	})
}

func TestRedis(t *testing.T) {
	t.Parallel()
	startRedis(t).eachPipeline(t, Config{Message: []byte("PING\r\n"), Answer: []byte("+PONG\r\n")})
}

func startMemcached(t *testing.T) *foreign {
	return startForeign(t, program(t, "memcached"), func(port string) []string {
		return []string{"-l", "127.0.0.1", "-p", port, "-U", "0", "-u", "root", "-t", "1", "-m", "16"}
	})
}

func TestMemcached(t *testing.T) {
	t.Parallel()
	f := startMemcached(t)
	f.eachPipeline(t, Config{Message: []byte("get nosuch\r\n"), Answer: []byte("END\r\n")})
	t.Run("large", func(t *testing.T) {
		t.Parallel()
		value := strings.Repeat("x", 100_000)
		f.bears(t, Config{
			Message: fmt.Appendf(nil, "set large 0 0 %d\r\n%s\r\n", len(value), value), Answer: []byte("STORED\r\n"),
			Connections: 4, Pipeline: 3,
		})
		f.bears(t, Config{
			Message: []byte("get large\r\n"), Answer: fmt.Appendf(nil, "VALUE large 0 %d\r\n%s\r\nEND\r\n", len(value), value),
			Connections: 4, Pipeline: 3, Messages: 5,
		})
	})
}

// sum adds up what memcached has under the keys of connections, numbered from 0 or 1.
func (f *foreign) sum(t *testing.T, prefix string, conns int) (sum int) {
	t.Helper()
	c, err := net.Dial(f.network, f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(foreignPatience))
	in := bufio.NewReader(c)
	for i := range conns + 1 {
		if _, err := fmt.Fprintf(c, "get %s%d\r\n", prefix, i); err != nil {
			t.Fatal(err)
		}
		for line := ""; line != "END\r\n"; {
			if line, err = in.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			if n, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
				sum += n
			}
		}
	}
	return sum
}

// keyPair writes the certificate of the tests, and its key, to files.
func keyPair(t *testing.T) (cert, key string) {
	t.Helper()
	own, _ := identity()
	private, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert = writeTemp(t, "cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]}))
	key = writeTemp(t, "key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	return cert, key
}

// writeTemp writes a file to a directory of its own.
func writeTemp(t *testing.T, name string, text []byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// nginxConfig is that of a server in one process, which has all its files in the
// directory that it is started with, and serves those in it. %s is its port, and what
// belongs to TLS.
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
	server {
		listen 127.0.0.1:%s;
		root .;
	}
}
`

// startNginx starts one that serves the files hello and large, with TLS if secured.
func startNginx(t *testing.T, secured bool) *foreign {
	path, more := program(t, "nginx"), ""
	if secured {
		cert, key := keyPair(t)
		more = " ssl; ssl_protocols TLSv1.3; ssl_certificate " + cert + "; ssl_certificate_key " + key
	}
	return startForeign(t, path, func(port string) []string {
		dir := filepath.Dir(writeTemp(t, "hello", []byte("Hello, World!")))
		for name, text := range map[string]string{
			"large":      strings.Repeat("0123456789abcdef", 10_000),
			"nginx.conf": fmt.Sprintf(nginxConfig, port+more),
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return []string{"-p", dir + "/", "-c", "nginx.conf", "-e", "stderr"}
	})
}

func TestNginx(t *testing.T) {
	t.Parallel()
	f := startNginx(t, false)
	f.eachPipeline(t, Config{HTTP: true, Message: []byte("GET /hello HTTP/1.1\r\nHost: there\r\n\r\n")})
	t.Run("large", func(t *testing.T) {
		t.Parallel()
		f.bears(t, Config{HTTP: true, Message: []byte("GET /large HTTP/1.1\r\nHost: there\r\n\r\n"), Connections: 5, Pipeline: 2})
	})
}

func TestNginxTLS(t *testing.T) {
	t.Parallel()
	f := startNginx(t, true)
	eachModel(t, func(t *testing.T, model string) {
		r := f.bears(t, Config{
			Model: model, TLS: clientTLS(), HTTP: true, Connections: 20,
			Message: []byte("GET /hello HTTP/1.1\r\nHost: there\r\n\r\n"),
		})
		if !strings.HasPrefix(r.TLS, "TLS 1.3, ") {
			t.Errorf("agreed on %q, want TLS 1.3", r.TLS)
		}
	})
}

// TestOpenSSL has a server that turns lines round, and serves one connection at a time.
func TestOpenSSL(t *testing.T) {
	t.Parallel()
	path := program(t, "openssl")
	cert, key := keyPair(t)
	for version, flag := range map[string]string{"TLS 1.2": "-tls1_2", "TLS 1.3": "-tls1_3"} {
		t.Run(version, func(t *testing.T) {
			f := startForeign(t, path, func(port string) []string {
				return []string{"s_server", "-quiet", "-rev", "-accept", "127.0.0.1:" + port, "-cert", cert, "-key", key, flag}
			})
			eachModel(t, func(t *testing.T, model string) {
				for _, pipeline := range []int{1, 16} {
					r := f.bears(t, Config{
						Model: model, TLS: clientTLS(), Connections: 1, Pipeline: pipeline,
						Message: []byte("stressed\n"), Answer: []byte("desserts\n"),
					})
					if !strings.HasPrefix(r.TLS, version+", ") {
						t.Errorf("agreed on %q, want %s", r.TLS, version)
					}
				}
			})
		})
	}
}
