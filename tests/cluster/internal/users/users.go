// Package users lets tests be anybody. It is the API server's token webhook: a
// token holds the name of its user, so that a test can have subjects that no
// ServiceAccount can be. It answers for one audience alone, that of the gateway, so
// such a token opens nothing at the API server itself.
package users

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"log"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// Prefix begins each token; the name follows in unpadded base64url.
	Prefix = "test-user."
	// Group is what all such users are in.
	Group = "berth:test-users"
	// Audience is the only one that the tokens are for.
	Audience = "berth"

	// maxReview is far above the largest token in a request's head.
	maxReview = 1 << 20
)

// review is the part of a TokenReview of authentication.k8s.io/v1 that is used here.
type review struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Spec       *spec   `json:"spec,omitempty"`
	Status     *status `json:"status,omitempty"`
}

type spec struct {
	Token     string   `json:"token"`
	Audiences []string `json:"audiences,omitempty"`
}

type status struct {
	Authenticated bool     `json:"authenticated"`
	User          *user    `json:"user,omitempty"`
	Audiences     []string `json:"audiences,omitempty"`
}

type user struct {
	Username string   `json:"username"`
	Groups   []string `json:"groups"`
}

// Serve answers reviews until the context ends.
func Serve(ctx context.Context, address string) error {
	server := &http.Server{Addr: address, Handler: handler(), ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	log.Printf("answering for made-up users on %s", address)
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /review", func(w http.ResponseWriter, r *http.Request) {
		var asked review
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxReview)).Decode(&asked); err != nil || asked.Spec == nil {
			http.Error(w, "not a TokenReview", http.StatusBadRequest)
			return
		}
		answer := review{APIVersion: asked.APIVersion, Kind: asked.Kind, Status: judge(*asked.Spec)}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	})
	return mux
}

// judge accepts a token of ours for our audience. The API server asks with its own
// audience for the callers of its API, and gets no for an answer.
func judge(asked spec) *status {
	name, ours := nameOf(asked.Token)
	if !ours || !slices.Contains(asked.Audiences, Audience) {
		return &status{}
	}
	return &status{
		Authenticated: true,
		User:          &user{Username: name, Groups: []string{Group}},
		Audiences:     []string{Audience},
	}
}

func nameOf(token string) (string, bool) {
	encoded, ours := strings.CutPrefix(token, Prefix)
	if !ours {
		return "", false
	}
	name, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	// JSON cannot carry other bytes, and would replace them.
	if err != nil || len(name) == 0 || !utf8.Valid(name) {
		return "", false
	}
	return string(name), true
}
