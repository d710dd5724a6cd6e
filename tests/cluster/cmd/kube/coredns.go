package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	// Only the plugins that the cluster's Corefile names: CoreDNS' usual set pulls
	// in the clients of three cloud vendors.
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

// runCoreDNS starts CoreDNS with its plugins in the order in which they see a query.
func runCoreDNS() int {
	dnsserver.Directives = []string{"errors", "health", "ready", "kubernetes", "template"}
	coremain.Run()
	return 0
}
