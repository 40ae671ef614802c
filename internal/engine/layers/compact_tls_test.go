package layers

import (
	"crypto/tls"
	"crypto/x509"
	"net/http/httptest"
	"reflect"
	"testing"
	"unsafe"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/secure"
	"github.com/myriad-go/myriad/internal/secure/tls13"
	"github.com/myriad-go/myriad/internal/testkit"
)

// Each idle TLS connection has a compactTLSLayer. Go allocates 128 bytes for up to 128, and 144 for more.
func TestCompactTLSLayerSize(t *testing.T) {
	if got := unsafe.Sizeof(compactTLSLayer{}); got > 128 {
		t.Errorf("a compactTLSLayer has %d bytes, want at most 128", got)
	}
}

// TestRestoreLayer restores two connections of one client, as after an upgrade. They share its certificates.
func TestRestoreLayer(t *testing.T) {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	leaf := s.Certificate()
	s.Close()
	other, err := x509.ParseCertificate(leaf.Raw)
	testkit.RequireNoError(t, err)
	ciphers := new(tls13.CipherCache)
	defer ciphers.Close()
	r := Restorer{Ciphers: ciphers}
	var all [2]*tls.ConnectionState
	for i, peer := range []*x509.Certificate{leaf, other} {
		records, err := tls13.NewConn(tls.TLS_AES_256_GCM_SHA384, false, make([]byte, 48), make([]byte, 48), 0, ciphers)
		testkit.RequireNoError(t, err)
		l := newCompactTLSLayer(&Config{DropExporters: true}, records, &tls.ConnectionState{
			CurveID: tls.X25519, DidResume: true, NegotiatedProtocol: "\x00h2\xff", ServerName: "name\xff\"",
			PeerCertificates: []*x509.Certificate{peer}, VerifiedChains: [][]*x509.Certificate{{peer, peer}, {peer}},
			SignedCertificateTimestamps: [][]byte{{1, 2}}, OCSPResponse: []byte{3},
		})
		restored, err := r.RestoreLayer(l.AppendState(nil))
		testkit.RequireNoError(t, err)
		want := l.state()
		all[i] = restored.(*compactTLSLayer).state()
		for _, field := range reflect.VisibleFields(reflect.TypeFor[tls.ConnectionState]()) {
			got, want := reflect.ValueOf(all[i]).Elem().FieldByIndex(field.Index), reflect.ValueOf(want).Elem().FieldByIndex(field.Index)
			if field.IsExported() && !reflect.DeepEqual(got.Interface(), want.Interface()) {
				t.Errorf("%s is %#v, want %#v", field.Name, got, want)
			}
		}
		if _, err := all[i].ExportKeyingMaterial("label", nil, 10); err != errNoExporter {
			t.Errorf("ExportKeyingMaterial: %v, want %v", err, errNoExporter)
		}
	}
	shared := all[0].PeerCertificates[0]
	for _, s := range all {
		for _, c := range append(append(s.VerifiedChains[0], s.VerifiedChains[1]...), s.PeerCertificates...) {
			if c != shared {
				t.Error("equal certificates are not shared")
			}
		}
	}
	for n := range 50 {
		if _, err := r.RestoreLayer(make([]byte, n)); err == nil {
			t.Errorf("a state of %d zeros is restored", n)
		}
	}
}

// Conn.CountTLS adds a secure.StayReason to engine.TLSCompact.
func TestStayReasonCounters(t *testing.T) {
	if got, want := engine.TLSSessionCache-engine.TLSCompact, engine.Counter(secure.StaySessionCache); got != want || secure.NumStayReasons != secure.StaySessionCache+1 {
		t.Errorf("the counters have %d reasons, want %d; %d are defined", got, want, secure.NumStayReasons-1)
	}
}
