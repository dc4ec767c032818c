include $(sort $(wildcard $(BR2_EXTERNAL_EDGEQ_PATH)/package/*/*.mk))
