// Package pki makes the cluster's certificates, keys and kubeconfigs anew for each
// cluster.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// validity is longer than any test cluster lives.
const validity = 5 * 365 * 24 * time.Hour

// authority signs everything in one cluster.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

// subject is who a certificate is for: a server if it has addresses, else a client.
type subject struct {
	user      string
	groups    []string
	names     []string
	addresses []net.IP
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template, err := template("berth-test-cluster")
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{certificate, key, encode("CERTIFICATE", der)}, nil
}

func template(name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour), // clocks of containers may differ
		NotAfter:     time.Now().Add(validity),
	}, nil
}

// issue returns a certificate and its key in PEM.
func (a *authority) issue(s subject) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template, err := template(s.user)
	if err != nil {
		return nil, nil, err
	}
	template.Subject.Organization = s.groups
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(s.addresses) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		template.DNSNames = s.names
		template.IPAddresses = s.addresses
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, private.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	key, err = encodeKey(private)
	return encode("CERTIFICATE", der), key, err
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	return encode("EC PRIVATE KEY", der), err
}

func writePair(base string, certificate, key []byte) error {
	if err := os.WriteFile(base+".crt", certificate, 0o644); err != nil {
		return fmt.Errorf("write a certificate: %w", err)
	}
	return os.WriteFile(base+".key", key, 0o600)
}
