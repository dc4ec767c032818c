################################################################################
#
# edgeq
#
################################################################################

EDGEQ_VERSION = 0.1.0
EDGEQ_SITE = $(BR2_EXTERNAL_EDGEQ_PATH)/..
EDGEQ_SITE_METHOD = local
EDGEQ_OVERRIDE_SRCDIR_RSYNC_EXCLUSIONS = \
	--exclude build --exclude dist --exclude .venv
EDGEQ_LICENSE = MIT
EDGEQ_LICENSE_FILES = LICENSE
# host-python3 is of the same version as the target's: its byte code is, too
EDGEQ_DEPENDENCIES = host-python3

EDGEQ_SPOOL = $(call qstrip,$(BR2_PACKAGE_EDGEQ_SPOOL))
EDGEQ_REQUIRE_MOUNT = $(call qstrip,$(BR2_PACKAGE_EDGEQ_REQUIRE_MOUNT))
EDGEQ_QUEUES = $(call qstrip,$(BR2_PACKAGE_EDGEQ_QUEUES))

# byte code alone: there is one Python in the image, and this is its minor
define EDGEQ_BUILD_CMDS
	$(HOST_DIR)/bin/python3 $(@D)/tools/build_pyz.py --no-source \
		$(if $(BR2_PACKAGE_EDGEQ_SQLITE),,--no-sqlite) \
		-o $(@D)/edgeq.pyz
	sed -f $(@D)/tools/lean.sed $(@D)/overlay/usr/bin/edgeq > $(@D)/edgeq.sh
	$(EDGEQ_BUILD_REDIS)
endef

define EDGEQ_INSTALL_TARGET_CMDS
	$(INSTALL) -D -m 0755 $(@D)/edgeq.pyz \
		$(TARGET_DIR)/usr/lib/edgeq/edgeq.pyz
	$(INSTALL) -D -m 0755 $(@D)/edgeq.sh $(TARGET_DIR)/usr/bin/edgeq
	$(INSTALL) -D -m 0644 $(@D)/overlay/etc/edgeq.conf \
		$(TARGET_DIR)/etc/edgeq.conf
	$(SED) '/^SPOOL=/d; /^#REQUIRE_MOUNT=/d' $(TARGET_DIR)/etc/edgeq.conf
	printf '%s\n' 'SPOOL=$(EDGEQ_SPOOL)' \
		'QUEUE=$(or $(firstword $(EDGEQ_QUEUES)),default)' \
		$(if $(EDGEQ_REQUIRE_MOUNT),'REQUIRE_MOUNT=$(EDGEQ_REQUIRE_MOUNT)') \
		>> $(TARGET_DIR)/etc/edgeq.conf
	mkdir -p $(TARGET_DIR)/etc/edgeq.conf.d \
		$(TARGET_DIR)/etc/edgeq/handlers $(TARGET_DIR)/etc/edgeq/scripts
	$(INSTALL) -D -m 0755 $(@D)/overlay/etc/network/if-up.d/edgeq \
		$(TARGET_DIR)/etc/network/if-up.d/edgeq
	$(INSTALL) -D -m 0755 $(@D)/overlay/etc/network/if-down.d/edgeq \
		$(TARGET_DIR)/etc/network/if-down.d/edgeq
	$(EDGEQ_INSTALL_HANDLERS)
	$(EDGEQ_INSTALL_REDIS)
endef

ifeq ($(BR2_PACKAGE_EDGEQ_HANDLERS),y)
define EDGEQ_INSTALL_HANDLERS
	$(INSTALL) -m 0755 -t $(TARGET_DIR)/etc/edgeq/handlers \
		$(@D)/overlay/etc/edgeq/handlers/*
	$(INSTALL) -m 0644 -t $(TARGET_DIR)/etc/edgeq \
		$(@D)/overlay/etc/edgeq/handlers.conf
	$(INSTALL) -m 0755 -t $(TARGET_DIR)/usr/lib/edgeq \
		$(@D)/overlay/usr/lib/edgeq/json-get
	$(INSTALL) -m 0644 -t $(TARGET_DIR)/usr/lib/edgeq \
		$(@D)/overlay/usr/lib/edgeq/handler.sh
endef
endif

# The Redis edition carries redis-py, whose own package names its licence and
# the text of it.
ifeq ($(BR2_PACKAGE_EDGEQ_REDIS),y)
EDGEQ_LICENSE += , MIT (redis-py)
EDGEQ_DEPENDENCIES += python-redis
define EDGEQ_BUILD_REDIS
	$(MAKE) -C $(@D) pyz-redis PYTHON=$(HOST_DIR)/bin/python3 \
		REDIS_PY=$(TARGET_DIR)/usr/lib/python$(PYTHON3_VERSION_MAJOR)/site-packages/redis
endef
define EDGEQ_INSTALL_REDIS
	$(INSTALL) -D -m 0755 $(@D)/dist/edgeq-redis.pyz \
		$(TARGET_DIR)/usr/lib/edgeq/edgeq-redis.pyz
endef
endif

# flock is in BusyBox's default configuration, but not in every product's.
define EDGEQ_BUSYBOX_CONFIG_FIXUPS
	$(call KCONFIG_ENABLE_OPT,CONFIG_FLOCK)
	$(call KCONFIG_ENABLE_OPT,CONFIG_AWK)
	$(call KCONFIG_ENABLE_OPT,CONFIG_LOGGER)
	$(EDGEQ_BUSYBOX_FSYNC_FIXUPS)
endef

ifeq ($(BR2_PACKAGE_EDGEQ_BUSYBOX_FSYNC),y)
define EDGEQ_BUSYBOX_FSYNC_FIXUPS
	$(call KCONFIG_ENABLE_OPT,CONFIG_FSYNC)
	$(call KCONFIG_ENABLE_OPT,CONFIG_FEATURE_SYNC_FANCY)
endef
endif

# A number of its own: an automatic one could change from image to image, and
# with it who owns the files on the data partition.
define EDGEQ_USERS
	edgeq 871 edgeq 871 * - - - edgeq job queue
endef

# The folders of a queue are made, with their modes, when it starts.
define EDGEQ_PERMISSIONS
	/etc/edgeq.conf.d d 0755 root root - - - - -
	/etc/edgeq/handlers d 0755 root root - - - - -
	/etc/edgeq/scripts d 0755 root root - - - - -
	/var/lib/edgeq d 0755 root edgeq - - - - -
endef

define EDGEQ_INSTALL_INIT_SYSV
	$(INSTALL) -D -m 0755 $(@D)/init.d/S85edgeq \
		$(TARGET_DIR)/etc/init.d/S85edgeq
	mkdir -p $(TARGET_DIR)/etc/default
	echo 'QUEUES="$(EDGEQ_QUEUES)"' > $(TARGET_DIR)/etc/default/edgeq
endef

define EDGEQ_INSTALL_INIT_SYSTEMD
	$(INSTALL) -D -m 0644 $(@D)/init.d/edgeq.service \
		$(TARGET_DIR)/usr/lib/systemd/system/edgeq.service
	$(INSTALL) -D -m 0644 $(@D)/init.d/edgeq@.service \
		$(TARGET_DIR)/usr/lib/systemd/system/edgeq@.service
	mkdir -p $(TARGET_DIR)/usr/lib/systemd/system/multi-user.target.wants
	$(foreach queue,$(wordlist 2,99,$(EDGEQ_QUEUES)),\
		ln -sf ../edgeq@.service $(TARGET_DIR)/usr/lib/systemd/system/multi-user.target.wants/edgeq@$(queue).service$(sep))
endef

$(eval $(generic-package))
